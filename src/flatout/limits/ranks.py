"""One rank of a measurement of links: meets the others, measures with them, and reports on a pipe.

`flatout limits` starts one for each GPU (`limits/link.py`). It also runs by itself, over several machines:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m flatout.limits.ranks

and the first rank then prints the result, a document as `link` is in that of `flatout limits`.
"""

import datetime as dt
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from flatout.limits.collective import MOST_RANKS_ALL_PAIRS, Ranks, best_of_large
from flatout.limits.link_figures import LinkFigures, settings_in
from flatout.limits.worker import follow_parent
from flatout.records.codec import encode
from flatout.records.words import memory_size

MEETING_S = 120.0
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
Event = dict[str, Any]
Send = Callable[[Event], None]


class RankOrder(msgspec.Struct, frozen=True):
    """Which rank of how many this is, on what device, and the file over which they meet."""

    rank: int
    ranks: int
    backend: Literal["nccl", "gloo"]
    device: str
    store: str


def measure(torch: Any, device: str) -> Iterator[Event]:
    """Every stage with its result, in step with all other ranks."""
    ranks = Ranks(torch, device)
    sizes, pairs = ranks.sizes, ranks.pairs()
    total, done = 2 + len(sizes) + len(pairs), 0

    def stage(name: str) -> Event:
        nonlocal done
        done += 1
        return {"event": "stage", "name": name, "done": done - 1, "total": total}

    yield stage("a sum that must be right")
    ranks.check_sum()
    yield stage("small sums")
    yield {"event": "small", "seconds": ranks.small_seconds()}
    rates = []
    for size in sizes:
        yield stage(f"sums of {memory_size(size)}")
        rates.append(ranks.all_reduce(size))
        yield {"event": "size", "rate": rates[-1]}
    yield {"event": "bus", "bytes_per_s": best_of_large(tuple(rates))}
    copies = ranks.copies()
    for source, target in pairs:
        yield stage(f"copies from rank {source} to {target}")
        yield {"event": "pair", "rate": next(copies)}
    if ranks.count > MOST_RANKS_ALL_PAIRS:
        why = f"neighbours alone: {ranks.count} ranks have too many pairs"
        yield {"event": "lacking", "field": "pairs.others", "reason": why}
    yield {"event": "done"}


def run(events: Iterable[Event], send: Send) -> int:
    """Send everything, or the reason why it ended; gives the exit code."""
    try:
        for event in events:
            send(event)
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes to whoever asked
        send({"event": "failed", "reason": reason_of(error)})
        return 1
    return 0


def reason_of(error: Exception) -> str:
    """An error in one line; NCCL says first where it noticed, and last what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return f"{what} ({lines[-1]})" if "NCCL" in what and len(lines) > 1 else what


def ordered(order: RankOrder) -> Iterator[Event]:
    """The measurement that `flatout limits` asked for."""
    yield {"event": "stage", "name": "import torch", "done": 0, "total": 0}
    import torch
    import torch.distributed as dist

    _take(torch, order.device)
    yield {"event": "stage", "name": "ranks meet", "done": 0, "total": 0}
    dist.init_process_group(
        order.backend,
        init_method=f"file://{order.store}",
        rank=order.rank,
        world_size=order.ranks,
        timeout=dt.timedelta(seconds=MEETING_S),
        device_id=torch.device(order.device) if order.backend == "nccl" else None,
    )
    with torch.inference_mode():
        yield from measure(torch, order.device)


def _take(torch: Any, device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # ranks share the cores


def under_torchrun() -> int:
    """All ranks that torchrun started, on all its machines; the first prints the document."""
    began = time.monotonic()
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    _take(torch, device)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=dt.timedelta(seconds=MEETING_S))
    named = [""] * dist.get_world_size()
    dist.all_gather_object(named, _own_name(on_gpu=on_gpu))
    figures = LinkFigures()
    with torch.inference_mode():
        code = run(measure(torch, device), figures.take)
    if dist.get_rank() == 0:
        link = figures.link(
            backend="nccl" if on_gpu else "gloo",
            members=tuple(named),
            nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            settings=settings_in(os.environ),
            took_s=time.monotonic() - began,
        )
        sys.stdout.buffer.write(encode("link", 1, link))
    elif code:
        sys.stderr.write(f"rank {dist.get_rank()}: {figures.reason}\n")
    return code


def _own_name(*, on_gpu: bool) -> str:
    machine = f"machine {os.environ.get('GROUP_RANK', '0')} ({platform.node()})"
    return f"{machine}, {'GPU' if on_gpu else 'process'} {os.environ['LOCAL_RANK']}"


def main() -> int:
    """As `flatout limits` calls it (a pipe and an order), or as torchrun does (no arguments)."""
    if len(sys.argv) == 3:
        pipe, order = int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=RankOrder)
        threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
        return run(ordered(order), lambda event: _write(pipe, event))
    if all(name in os.environ for name in _TORCHRUN):
        return under_torchrun()
    sys.stderr.write("start it with torchrun, or use: flatout limits --ranks 2\n")
    return 2


def _write(pipe: int, event: Event) -> None:
    os.write(pipe, msgspec.json.encode(event) + b"\n")


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking a group down waits for ranks that may be gone; everything has been said.
    os._exit(ended)
