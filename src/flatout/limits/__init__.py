"""What a device can really do: measured in a child process, kept per device, driver and torch."""
