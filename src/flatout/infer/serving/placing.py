"""Where the model computes: --device, checked by its words alone, and then by what this machine has."""

import re
from typing import TYPE_CHECKING

from flatout.records.errors import CallerMistake

if TYPE_CHECKING:
    import torch

_WORDS = re.compile(r"(cpu|cuda)(:\d{1,4})?")
_EXPECTED = "cuda, cuda:1 or cpu"


def check_words(device: str) -> None:
    """Refuse what names no device anywhere; without torch."""
    if device and not _WORDS.fullmatch(device):
        raise CallerMistake(
            f"--device {device!r}",
            expected=_EXPECTED,
            remedy="leave it out: a GPU is taken where there is one",
        )


def placed(device: str) -> "torch.device":
    """The device, or the usual one where none is named; raises CallerMistake where it is not here."""
    import torch

    check_words(device)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = torch.device(device or ("cuda" if count else "cpu"))
    if found.type == "cuda" and (found.index or 0) >= count:
        here = {0: "torch finds no GPU here", 1: "torch finds one GPU here"}
        raise CallerMistake(
            f"--device {device}, and {here.get(count, f'torch finds {count} GPUs here')}",
            expected=f"cuda, cuda:0 to cuda:{count - 1}, or cpu" if count else "cpu",
            remedy="python -m torch.utils.collect_env   # shows what torch finds"
            if not count
            else "flatout doctor   # shows the GPUs of this machine",
        )
    return found
