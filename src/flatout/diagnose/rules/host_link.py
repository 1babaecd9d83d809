"""The link to the host is narrower or slower than card and slot allow.

A card that sits in the wrong slot, a riser, or a link that has fallen back after errors. Seen by the width
and generation that the link reached while the job ran, against what card and slot can do. It can be wrong
on virtual machines, which do not always tell the truth about their links.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Less than it could be."""
    use = seen.profile.device_use
    width, widest = use.pcie_width, use.pcie_width_max
    now, best = use.pcie_generation, use.pcie_generation_max
    if width is None or widest is None or now is None or best is None:
        return None
    if width >= widest and now >= best:
        return None
    return RULE.finding(
        f"PCIe runs at generation {now} x{width}, and could at generation {best} x{widest}",
        "flatout doctor; then the slot, the riser and the BIOS",
    )


RULE = Rule("F602", "a degraded host link", look)
