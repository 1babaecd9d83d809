"""The dashboard of jobs."""

from scripts.dashboards.panels import dashboard, stat, table, timeseries, variable

RUN = '{run=~"$run"}'
OF_JOB = 'and on (instance, uuid) flatout_job_device{run=~"$run"}'
RATE = "[$__rate_interval]"
GPU = "GPU {{gpu}} {{instance}}"


def job_dashboard() -> str:
    """One job, or several side by side."""
    steps = f"sum by (run, le) (rate(flatout_job_step_seconds_bucket{RUN}{RATE}))"
    panels = [
        stat("State", "none", (f"flatout_job_state{RUN} == 1", "{{run}}: {{state}}"), width=6),
        stat("Updates", "short", (f"flatout_job_position_updates{RUN}", "{{run}}")),
        stat(
            "Done",
            "percentunit",
            (f"flatout_job_position_updates{RUN} / flatout_job_updates_planned{RUN}", "{{run}}"),
            text="Only where the job says how many updates it will make.",
        ),
        stat("MFU", "percentunit", (f"flatout_job_mfu_ratio{RUN}", "{{run}}")),
        stat(
            "Could be faster by",
            "none",
            (f"flatout_job_headroom_ratio{RUN}", "{{run}}"),
            width=3,
            text="Times, by the floors of its last profile.",
        ),
        stat(
            "Checkpoint is",
            "s",
            (f"time() - flatout_job_checkpoint_timestamp_seconds{RUN}", "{{run}}"),
            width=3,
        ),
        timeseries(
            "Step",
            "s",
            (f"flatout_job_recent_step_seconds{RUN}", "{{run}} now"),
            (f"flatout_job_best_step_seconds{RUN}", "{{run}} at its best"),
        ),
        timeseries(
            "Steps by how long they took",
            "s",
            (f"histogram_quantile(0.5, {steps})", "{{run}} median"),
            (f"histogram_quantile(0.99, {steps})", "{{run}} 99 %"),
        ),
        timeseries("Samples a second", "short", (f"flatout_job_samples_per_second{RUN}", "{{run}}")),
        timeseries("Loss", "none", (f"flatout_job_loss{RUN}", "{{run}}")),
        timeseries(
            "Waiting for data", "percentunit", (f"flatout_job_data_wait_ratio{RUN}", "{{run}}"), most=1
        ),
        timeseries(
            "GPU time without a kernel",
            "percentunit",
            (
                (
                    f"rate(flatout_job_device_idle_seconds_total{RUN}{RATE}) / "
                    f"(rate(flatout_job_device_seconds_total{RUN}{RATE}) > 0)"
                ),
                "{{run}}",
            ),
            most=1,
        ),
        timeseries("Step by rank", "s", (f"flatout_job_rank_step_seconds{RUN}", "{{run}} rank {{rank}}")),
        timeseries(
            "Kernels, SMs and tensor cores of its GPUs",
            "percentunit",
            (f"flatout_device_kernel_running_ratio {OF_JOB}", f"{GPU} some kernel"),
            (f"flatout_device_sm_active_ratio {OF_JOB}", f"{GPU} SMs"),
            (f"flatout_device_tensor_active_ratio {OF_JOB}", f"{GPU} tensor cores"),
            most=1,
        ),
        timeseries(
            "Memory of its GPUs",
            "bytes",
            (f"flatout_device_memory_used_bytes {OF_JOB}", GPU),
            (f"flatout_job_memory_peak_bytes{RUN}", "{{run}} peak of the job"),
        ),
        timeseries("Power of its GPUs", "watt", (f"flatout_device_power_watts {OF_JOB}", GPU)),
        timeseries(
            "Temperature of its GPUs", "celsius", (f"flatout_device_temperature_celsius {OF_JOB}", GPU)
        ),
        timeseries(
            "Throttled",
            "percentunit",
            (
                f"sum by (run, reason) (rate(flatout_job_throttled_seconds_total{RUN}{RATE}))",
                "{{run}} {{reason}}",
            ),
            text="GPUs times share of time: 2 is two GPUs all the time.",
        ),
        timeseries(
            "Trouble",
            "short",
            (f"increase(flatout_job_losses_not_finite_total{RUN}{RATE})", "{{run}} losses not finite"),
            (f"increase(flatout_job_skipped_updates_total{RUN}{RATE})", "{{run}} updates skipped"),
            (f"increase(flatout_job_out_of_memory_total{RUN}{RATE})", "{{run}} out of memory"),
            (f"increase(flatout_job_hangs_total{RUN}{RATE})", "{{run}} hangs"),
            (f"increase(flatout_job_slowdowns_total{RUN}{RATE})", "{{run}} slowdowns"),
        ),
        timeseries(
            "Cost so far",
            "currencyUSD",
            (
                (
                    f"flatout_job_device_seconds_total{RUN} / 3600 "
                    f"* on (instance, run) flatout_job_usd_per_hour{RUN} "
                    f"/ on (instance, run) count by (instance, run) (flatout_job_device{RUN})"
                ),
                "{{run}}",
            ),
            text="GPU hours at what its GPUs cost now.",
        ),
        timeseries("Energy so far", "joule", (f"flatout_job_energy_joules_total{RUN}", "{{run}}")),
        table("Jobs", f"flatout_job_info{RUN}", "run", "exported_job", "user", "host", width=16),
        timeseries("Started", "short", (f"flatout_job_lives{RUN}", "{{run}}"), text="Times."),
    ]
    return dashboard("flatout-job", "Flatout: job", [variable("run", "flatout_job_info", "run")], panels)
