"""Why the clocks are lower than they could be: NVML's bit mask in words."""

# Bit -> our name. NVML calls them "clocks event reasons" now and "clocks throttle reasons" before.
REASONS: dict[int, str] = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_software",
    0x040: "thermal_hardware",
    0x080: "power_brake",
    0x100: "display_clocks",
}


def decode_reasons(mask: int) -> tuple[str, ...]:
    """The names of the bits in `mask`; a bit that we don't know keeps its number."""
    named = [name for bit, name in REASONS.items() if mask & bit]
    strange = mask & ~sum(REASONS)
    return (*named, *([f"other_{strange:#x}"] if strange else []))
