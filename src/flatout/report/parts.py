"""Parts of a step: what they are called among people, and as a table with bars in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.step import Part, Share
from flatout.records.words import percent
from flatout.report.figures import milliseconds
from flatout.report.plain import inert, is_narrow, line

# Work first, then what the device idles for; each with what it means.
PARTS: dict[Part, tuple[str, str]] = {
    "matmul": ("matrix products", "products and convolutions"),
    "attention": ("attention", "fused attention kernels"),
    "memory_bound": ("memory-bound kernels", "they move numbers more than they compute"),
    "optimizer": ("optimizer", "the update"),
    "other_gpu": ("other kernels", "of no kind that their names tell"),
    "host_compute": ("computing on the host", "forward, backward and copies"),
    "communication": ("communication", "between ranks, while nothing computes"),
    "host_to_device": ("copies to the device", "while nothing computes"),
    "input_wait": ("waiting for data", "the loop waits for its loader"),
    "sync_stall": ("idle after a wait", "the host waited for the device, and gave it nothing to do"),
    "launch_gap": (
        "idle between launches",
        "the host launches kernels more slowly than the device runs them",
    ),
    "unattributed": ("not attributed", "what could not be told apart"),
}
_WORDS: dict[str, str] = {part: words for part, (words, _) in PARTS.items()}
_BAR = 30


def part_words(part: str) -> str:
    """What a part is called; the forward's and the backward's names are words already."""
    return _WORDS.get(part, part)


def draw_parts(title: str, parts: Sequence[Share], console: Console, *, per: str = "a step") -> None:
    """Parts of a step, or of what `per` says, as a table with bars."""
    parts = [share for share in parts if share.ms > 0]
    if not parts:
        return
    if is_narrow(console):
        console.print(line(title, "dim"))
        for share in parts:
            words = part_words(share.part)
            console.print(line(f"{words}: {milliseconds(share.ms)} ({percent(share.share)})"))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, min_width=15)
    table.add_column(per, justify="right", min_width=8)
    table.add_column("", justify="right", min_width=6)
    table.add_column("")
    block = "#" if console.options.ascii_only else "█"
    for share in parts:
        bar = block * round(_BAR * share.share)
        table.add_row(inert(part_words(share.part)), milliseconds(share.ms), percent(share.share), bar)
    console.print(table)
    console.print()
