"""Watching jobs and machines: live view, exporter, sinks, thermal and power, fleet."""
