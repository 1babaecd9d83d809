"""The exporter: what is seen of a machine and its jobs, as metrics for Prometheus and OpenTelemetry."""
