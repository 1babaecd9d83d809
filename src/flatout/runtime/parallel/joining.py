"""The other ranks of a training: finding them, waiting for them in bounded time, and naming who failed."""

import contextlib
import datetime as dt
import itertools
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from flatout.records.errors import CallerMistake, JobFailed
from flatout.runtime.meeting import words_of_this_life

_FROM_TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Launchers that start several processes and leave it to each to find the others.
_OTHER_LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_POLL_S = 0.02
_made = itertools.count()
# Trainings that are under way; whether the process group is ours to take down with the last of them.
_in_use: set[str] = set()
_group_is_ours = False


class Joined:
    """This process among those that train together; one that is alone is the first of one."""

    def __init__(self, *, device: Any, local_rank: int, timeout_s: float) -> None:
        import torch.distributed as dist

        is_on = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if is_on else 0
        self.count = dist.get_world_size() if is_on else 1
        self.local_rank = local_rank
        # Processes on this machine.
        self.local_count = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        self.device = device
        self.timeout_s = timeout_s
        self._store = words_of_this_life()
        # Every rank joins in the same order; words of one training are not another's.
        self._name = f"parallel/{next(_made)}"
        self._barriers = 0
        _in_use.add(self._name)

    @property
    def has_group(self) -> bool:
        """Whether there is a process group, be it of one."""
        import torch.distributed as dist

        return bool(dist.is_available() and dist.is_initialized())

    def barrier(self, timeout_s: float | None = None) -> None:
        """Until all ranks are here; raises JobFailed that names who failed, or who did not come in time."""
        if self._store is None:
            return
        self._barriers += 1
        name = f"{self._name}/barrier/{self._barriers}"
        waits_s = self.timeout_s if timeout_s is None else timeout_s
        self._store.set(f"{name}/{self.rank}", "here")
        missing = [rank for rank in range(self.count) if rank != self.rank]
        deadline = time.monotonic() + waits_s
        while missing:
            missing = [rank for rank in missing if not self._store.check([f"{name}/{rank}"])]
            if not missing:
                return
            self._raise_what_failed()
            if time.monotonic() > deadline:
                raise _did_not_come(missing, waits_s)
            time.sleep(_POLL_S)

    def of_first(self, number: int) -> int:
        """A number of the first rank's, on all of them."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        told = torch.tensor([number], dtype=torch.int64, device=self.speaks_on)
        dist.broadcast(told, 0)
        return int(told.item())

    @property
    def speaks_on(self) -> Any:
        """Where tensors must be that travel between ranks: the host, unless the group has NCCL alone."""
        import torch
        import torch.distributed as dist

        has_gloo = not self.has_group or "gloo" in str(dist.get_backend_config())
        return torch.device("cpu") if has_gloo else self.device

    def failed_elsewhere(self) -> str:
        """The first failure that another rank has told of, or nothing."""
        with contextlib.suppress(Exception):  # the store may be gone with whoever kept it
            key = f"{self._name}/failed"
            if self._store is not None and self._store.check([key]):
                rank, _, words = self._store.get(key).decode().partition(":")
                return f"rank {rank} failed: {words}" if int(rank) != self.rank else ""
        return ""

    def tell_of_failure(self, error: BaseException) -> None:
        """To the other ranks, and to torchrun, whose summary then shows it."""
        words = f"{self.rank}:{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            if self._store is not None:
                self._store.compare_set(f"{self._name}/failed", "", words)
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            with contextlib.suppress(Exception):
                from torch.distributed.elastic.multiprocessing.errors import get_error_handler

                get_error_handler().record_exception(error)

    def _raise_what_failed(self) -> None:
        words = self.failed_elsewhere()
        if words:
            raise JobFailed(
                words, expected="all ranks at the barrier", remedy="see the error of that rank, further up"
            )

    def leave(self, *, failed: bool = False) -> None:
        """Take the process group down, where it is ours and nobody else uses it."""
        global _group_is_ours  # noqa: PLW0603 - torch has one for the process, too
        import torch.distributed as dist

        _in_use.discard(self._name)
        if _in_use or not _group_is_ours or not self.has_group:
            return
        _group_is_ours = False
        # After a failure NCCL would wait for the others; gloo's closed connections tell them at once.
        if not failed or dist.get_backend() == "gloo":
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def join(*, timeout_s: float, device: Any = None, even_alone: bool = False) -> Joined:
    """Join the ranks that torchrun's environment tells of; without any, be alone.

    A process group that exists is used and left as it is. NCCL where there are GPUs, one for each local rank,
    and gloo beside it for tensors of the host; gloo alone elsewhere.
    """
    global _group_is_ours  # noqa: PLW0603 - torch has one for the process, too
    import torch.distributed as dist

    environment = os.environ
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    count = _count(environment)
    where = _device(device, local_rank)
    if dist.is_available() and dist.is_initialized():
        return Joined(device=where, local_rank=local_rank, timeout_s=timeout_s)
    if count == 1 and not even_alone:
        return Joined(device=where, local_rank=local_rank, timeout_s=timeout_s)
    if not dist.is_available():
        raise CallerMistake(
            "a torch that was built without torch.distributed",
            expected="one that has it, for more than one process",
            remedy="install torch from pytorch.org, or start one process",
        )
    _start_group(where, count, timeout_s)
    _group_is_ours = True
    return Joined(device=where, local_rank=local_rank, timeout_s=timeout_s)


def _start_group(device: Any, count: int, timeout_s: float) -> None:
    import torch.distributed as dist

    hash_store: Any = vars(dist)["HashStore"]
    more: dict[str, Any] = {"timeout": dt.timedelta(seconds=timeout_s)}
    backend = "gloo"
    if device.type == "cuda":
        backend, more["device_id"] = "cpu:gloo,cuda:nccl", device
    if count == 1:  # no launcher is needed, and none may be there
        more |= {"store": hash_store(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, **more)


def _count(environment: Mapping[str, str]) -> int:
    """How many processes the environment tells of; raises CallerMistake where it tells half of it."""
    if "WORLD_SIZE" in environment:
        missing = [name for name in _FROM_TORCHRUN if name not in environment]
        if missing and environment["WORLD_SIZE"] != "1":
            raise CallerMistake(
                f"WORLD_SIZE={environment['WORLD_SIZE']} without {', '.join(missing)}",
                expected="the environment that torchrun sets",
                remedy="start it with: torchrun --nproc-per-node N train.py",
            )
        return int(environment["WORLD_SIZE"])
    for name in _OTHER_LAUNCHERS:
        if environment.get(name, "1").isdigit() and int(environment.get(name, "1")) > 1:
            raise CallerMistake(
                f"{name}={environment[name]} and no WORLD_SIZE: each process would train by itself",
                expected="the environment that torchrun sets",
                remedy="let the launcher start torchrun once a machine, and torchrun the processes",
            )
    return 1


def _device(wanted: Any, local_rank: int) -> Any:
    import torch

    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type != "cuda":
        return device
    if str(device) == "cuda":  # none in particular
        if local_rank >= torch.cuda.device_count():
            raise CallerMistake(
                f"process {local_rank} of this machine, which has {torch.cuda.device_count()} GPUs",
                expected="a GPU for each process",
                remedy=f"torchrun --nproc-per-node {torch.cuda.device_count()}, or device='cpu'",
            )
        is_launched = "LOCAL_RANK" in os.environ
        device = torch.device("cuda", local_rank if is_launched else torch.cuda.current_device())
    # Whatever says "cuda" from now on means this one.
    torch.cuda.set_device(device)
    return device


def _did_not_come(missing: list[int], waits_s: float) -> JobFailed:
    who = ", ".join(str(rank) for rank in missing)
    return JobFailed(
        f"rank {who} did not come to the barrier within {waits_s:g} s",
        expected="all ranks at the barrier",
        remedy=f"see what rank {who} does: py-spy dump --pid PID, or a larger timeout_s",
    )


class Watch:
    """Tells the other ranks of an exception that ends this process, as Python prints it."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self.has_failed = False
        self._before = sys.excepthook
        sys.excepthook = self._on_exception

    def _on_exception(self, kind: Any, error: Any, trace: Any) -> None:
        self.note(error)
        self._before(kind, error, trace)

    def note(self, error: BaseException) -> None:
        """This rank has failed; where another one has failed before, say so in the error."""
        if self.has_failed:
            return
        self.has_failed = True
        words = self._joined.failed_elsewhere()
        if words:
            error.add_note(f"flatout: {words}; this is what followed on rank {self._joined.rank}")
        else:
            self._joined.tell_of_failure(error)

    def leave(self) -> None:
        """Put back the hook that was found, where ours is still in its place."""
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._before
