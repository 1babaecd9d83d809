"""All machines at a glance: what a Prometheus server knows of many exporters, and what to do about it."""
