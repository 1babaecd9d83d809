"""The dashboard of all machines together."""

from scripts.dashboards.panels import dashboard, stat, table, timeseries


def fleet_dashboard() -> str:
    """All machines at a glance."""
    idle = "(1 - flatout_device_kernel_running_ratio)"
    held = "(flatout_device_processes > 0)"
    panels = [
        stat("Machines", "short", ("count(flatout_node_info)", "")),
        stat("GPUs", "short", ("sum by (state) (flatout_node_devices)", "{{state}}"), width=6),
        stat("Jobs", "short", ("sum by (state) (flatout_job_state)", "{{state}}"), width=6),
        stat("Power", "watt", ("sum(flatout_device_power_watts)", "")),
        stat("An hour costs", "currencyUSD", ("sum(flatout_device_usd_per_hour)", "")),
        timeseries(
            "GPUs in use",
            "short",
            ("count(flatout_device_up == 1)", "answer"),
            ("count(flatout_device_processes > 0) or vector(0)", "held by somebody"),
            ("count(flatout_device_kernel_running_ratio > 0.05) or vector(0)", "with kernels"),
        ),
        timeseries(
            "Paid and idle",
            "currencyUSD",
            (f"sum({idle} * on (instance, gpu, uuid) flatout_device_usd_per_hour)", "all GPUs, an hour"),
            (
                (
                    f"sum({idle} * on (instance, gpu, uuid) flatout_device_usd_per_hour and "
                    f"on (instance, gpu, uuid) {held})"
                ),
                "GPUs that somebody holds, an hour",
            ),
            text="Share of time without a kernel, times the price of the GPU.",
        ),
        timeseries(
            "Tensor cores and SMs, mean",
            "percentunit",
            ("avg(flatout_device_kernel_running_ratio)", "some kernel runs"),
            ("avg(flatout_device_sm_active_ratio)", "SMs with work"),
            ("avg(flatout_device_tensor_active_ratio)", "tensor cores"),
            most=1,
        ),
        table(
            "Held, and without a kernel for ten minutes",
            f"flatout_device_memory_used_bytes and on (instance, gpu, uuid) {held} "
            "and on (instance, gpu, uuid) (max_over_time(flatout_device_kernel_running_ratio[10m]) < 0.05)",
            "instance",
            "gpu",
            "uuid",
            unit="bytes",
        ),
        table("GPUs that do not answer", "flatout_device_up == 0", "instance", "gpu", "uuid"),
        table(
            "Jobs by MFU, lowest first", "sort(flatout_job_mfu_ratio)", "run", "instance", unit="percentunit"
        ),
        table(
            "Jobs without a known checkpoint for an hour",
            "((time() - flatout_job_checkpoint_timestamp_seconds > 3600) or "
            "(time() - flatout_job_started_timestamp_seconds > 3600 unless on (instance, run) "
            "flatout_job_checkpoint_timestamp_seconds)) and on (instance, run) "
            '(flatout_job_state{state="ended"} == 0)',
            "run",
            "instance",
            unit="s",
        ),
        timeseries(
            "Throttled GPUs",
            "short",
            ("sum by (reason) (flatout_device_throttled)", "{{reason}}"),
        ),
        timeseries("Power", "watt", ("sum by (instance) (flatout_device_power_watts)", "{{instance}}")),
        timeseries(
            "Memory in use",
            "percentunit",
            (
                (
                    "sum by (instance) (flatout_device_memory_used_bytes) / "
                    "sum by (instance) (flatout_device_memory_total_bytes)"
                ),
                "{{instance}}",
            ),
            most=1,
        ),
        table(
            "Machines",
            "sum by (instance, host) (flatout_node_info)",
            "instance",
            "host",
        ),
        timeseries(
            "Exporters",
            "short",
            (
                "sum by (instance) (rate(flatout_exporter_errors_total[$__rate_interval]))",
                "{{instance}} errors",
            ),
            ("rate(flatout_exporter_scrapes_total[$__rate_interval])", "{{instance}} scrapes"),
            width=12,
        ),
    ]
    return dashboard("flatout-fleet", "Flatout: fleet", [], panels)
