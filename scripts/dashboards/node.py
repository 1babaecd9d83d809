"""The dashboard of machines."""

from scripts.dashboards.panels import dashboard, stat, table, timeseries, variable

HERE = '{instance=~"$instance"}'
RATE = "[$__rate_interval]"
GPU = "GPU {{gpu}} {{instance}}"


def node_dashboard() -> str:
    """One machine, or several side by side."""
    used, total = f"flatout_device_memory_used_bytes{HERE}", f"flatout_device_memory_total_bytes{HERE}"
    panels = [
        stat("GPUs", "short", (f"sum by (state) (flatout_node_devices{HERE})", "{{state}}"), width=6),
        stat("Power", "watt", (f"sum(flatout_device_power_watts{HERE})", "")),
        stat("Hottest", "celsius", (f"max(flatout_device_temperature_celsius{HERE})", "")),
        stat("Xids in a day", "short", (f"sum(increase(flatout_device_xid_total{HERE}[1d]))", "")),
        stat("CPU", "percentunit", (f"avg(flatout_node_cpu_ratio{HERE})", ""), width=3),
        stat(
            "Memory",
            "percentunit",
            (f"sum(flatout_node_memory_used_bytes{HERE}) / sum(flatout_node_memory_total_bytes{HERE})", ""),
            width=3,
        ),
        timeseries(
            "Some kernel runs",
            "percentunit",
            (f"flatout_device_kernel_running_ratio{HERE}", GPU),
            most=1,
            text="What others call GPU utilization. It says nothing of how much of the GPU is used.",
        ),
        timeseries("SMs with work", "percentunit", (f"flatout_device_sm_active_ratio{HERE}", GPU), most=1),
        timeseries("Tensor cores", "percentunit", (f"flatout_device_tensor_active_ratio{HERE}", GPU), most=1),
        timeseries("Memory", "percentunit", (f"{used} / {total}", GPU), most=1),
        timeseries(
            "Memory bandwidth", "percentunit", (f"flatout_device_memory_bandwidth_ratio{HERE}", GPU), most=1
        ),
        timeseries(
            "Occupancy of SMs", "percentunit", (f"flatout_device_sm_occupancy_ratio{HERE}", GPU), most=1
        ),
        timeseries(
            "Power",
            "watt",
            (f"flatout_device_power_watts{HERE}", GPU),
            (f"flatout_device_power_limit_watts{HERE}", f"{GPU} limit"),
        ),
        timeseries(
            "Temperature",
            "celsius",
            (f"flatout_device_temperature_celsius{HERE}", GPU),
            (f"flatout_device_memory_temperature_celsius{HERE}", f"{GPU} memory"),
            (f"flatout_device_temperature_slowdown_celsius{HERE}", f"{GPU} slows down at"),
        ),
        timeseries(
            "Clock",
            "hertz",
            (f"flatout_device_clock_compute_hertz{HERE}", GPU),
            (f"flatout_device_clock_compute_max_hertz{HERE}", f"{GPU} highest"),
        ),
        timeseries(
            "Throttled",
            "percentunit",
            (
                (
                    f"rate(flatout_device_throttled_seconds_total{HERE}{RATE}) > 0 or "
                    f"max by (instance, gpu, uuid) (rate(flatout_device_throttled_seconds_total{HERE}{RATE}))"
                ),
                f"{GPU} {{{{reason}}}}",
            ),
            most=1,
        ),
        timeseries(
            "PCIe",
            "Bps",
            (f"flatout_device_pcie_sent_bytes_per_second{HERE}", f"{GPU} sent"),
            (f"flatout_device_pcie_received_bytes_per_second{HERE}", f"{GPU} received"),
        ),
        timeseries(
            "Errors",
            "short",
            (f"flatout_device_xid_total{HERE}", f"{GPU} Xids"),
            (f"flatout_device_ecc_uncorrected_total{HERE}", f"{GPU} memory, uncorrected"),
        ),
        timeseries("Processes", "short", (f"flatout_device_processes{HERE}", GPU)),
        timeseries("Age of the newest answer", "s", (f"flatout_device_sample_age_seconds{HERE}", GPU)),
        timeseries(
            "The exporter",
            "s",
            (f"flatout_exporter_collect_seconds{HERE}", "{{instance}} a collection"),
            (
                f"rate(flatout_exporter_errors_total{HERE}{RATE})",
                "{{instance}} errors a second: {{collector}}",
            ),
        ),
        table(
            "GPUs",
            f"flatout_device_info{HERE}",
            "instance",
            "gpu",
            "name",
            "uuid",
            "driver_version",
            width=24,
        ),
    ]
    choice = variable("instance", "flatout_node_info", "instance")
    return dashboard("flatout-node", "Flatout: node", [choice], panels)
