"""Stands in for a vendor's command line tools: answers from recorded output, and remembers the calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.hardware.command import ToolOutput

RECORDED = Path(__file__).parents[1] / "recorded" / "vendor_tools"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


class FakeTools:
    """`outputs` maps words of a command line to a text, or to a ToolOutput that failed.

    The first entry whose words all occur in the command answers; a tool without an entry is not installed.
    """

    def __init__(self, outputs: Mapping[tuple[str, ...], str | ToolOutput]) -> None:
        self.outputs = dict(outputs)
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, arguments: Sequence[str], *, timeout_s: float) -> ToolOutput:
        assert timeout_s > 0
        self.calls.append(tuple(arguments))
        for words, output in self.outputs.items():
            if all(word in arguments for word in words):
                return output if isinstance(output, ToolOutput) else ToolOutput(text=output)
        return ToolOutput(text=None, reason=f"{arguments[0]} is not installed")
