"""Updates that are not finite: found on the device, agreed on by all ranks, skipped, counted, explained."""
