"""`fit`: what a script would take on a GPU, before it has one."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from flatout.hardware.catalogue import price_table, select
from flatout.hardware.host import cores_allowed, read_host
from flatout.memory.ahead import Ahead
from flatout.memory.imagining import Imaginer, is_enough, largest_ledger
from flatout.memory.linking import Links
from flatout.memory.planning import CONTEXT_BYTES, ERROR_BAR, Budget, Plan, option_of, plan
from flatout.memory.replaying import Replayed, replay
from flatout.memory.snapshot import write_snapshot
from flatout.memory.spreading import spread
from flatout.memory.strategies import AS_WRITTEN, strategies
from flatout.records.errors import JobFailed
from flatout.records.fit import Fit, MemoryHolder, MemoryStack, SpreadOption
from flatout.records.ledger import LedgerFile
from flatout.records.trial import Trial
from flatout.records.words import memory_size
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest, insist_on_libraries
from flatout.runtime.trial import OnProgress

# Updates, for an optimizer's states to stand beside activations.
_ENOUGH = 2
# Imagined runs side by side: each is one thread, and takes some hundred megabytes.
_AT_ONCE = 4
_HOLDERS = 12
USUAL = ("t4", "l4", "rtx4090", "a100-40gb-sxm", "l40s", "a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm")


@dataclasses.dataclass(frozen=True)
class GivenBudget:
    """So much memory, on whatever GPU."""

    id: str
    usable_bytes: int


@dataclasses.dataclass(frozen=True)
class Several:
    """GPUs at once; what goes between two of them, one way, and a step's time on one, where known."""

    gpus: int
    link_bytes_per_s: float | None = None
    step_s: float | None = None


def fit_job(
    request: ProfileRequest,
    run: str,
    folder: Path,
    on_progress: OnProgress,
    *,
    gpus: Sequence[str] = (),
    max_memory_bytes: int | None = None,
    look_for_ways: bool = True,
    snapshot: Path | None = None,
    several: Several | None = None,
) -> Fit:
    """Run the script on an imagined GPU; raises JobFailed where that cannot be.

    Where it does not fit into what was named, ways to make it fit are imagined too. `snapshot` is a file for
    torch's own viewer of memory.
    """
    began = time.monotonic()
    budgets: list[Budget] = list(select(gpus)) if gpus else []
    if max_memory_bytes is not None:
        budgets.append(GivenBudget(memory_size(max_memory_bytes), max_memory_bytes))
    is_asked = bool(budgets)
    budgets = budgets or list(select(USUAL))
    imaginer = Imaginer(request, folder / TRIALS_FOLDER, on_progress)
    trial, place = imaginer.run(())
    ledger = _ledger_of(trial, place, request.command)
    replayed = replay(ledger)
    if snapshot is not None:
        write_snapshot(ledger, replayed.peak_event, snapshot)
    options = tuple(option_of(one, AS_WRITTEN, ledger, replayed, _price(one.id)) for one in budgets)
    short = [one for one, option in zip(budgets, options, strict=True) if option.fits is not True]
    found = _ways(ledger, short, imaginer) if short and is_asked and look_for_ways else None
    where = _from_here(*replayed.place[:3]) if replayed.place else None
    return Fit(
        run=run,
        command=request.command.words,
        peak_bytes=replayed.allocated_bytes,
        reserved_bytes=replayed.reserved_bytes,
        parts=dataclasses.replace(replayed.parts, context=CONTEXT_BYTES),
        error_bar=ERROR_BAR,
        updates=ledger.updates,
        where=where,
        options=options,
        holders=_holders(replayed),
        strategies=found.options if found is not None else (),
        least_bytes=found.least_bytes if found is not None else None,
        least_by=found.least_words if found is not None else "",
        spread=_spread(ledger, budgets, several) if several is not None else (),
        timeline=replayed.timeline,
        update_events=ledger.update_events,
        stacks=_stacks(replayed),
        took_s=time.monotonic() - began,
        notes=tuple(_notes(ledger, replayed, trial)),
    )


def _spread(ledger: LedgerFile, budgets: Sequence[Budget], several: Several) -> tuple[SpreadOption, ...]:
    found: list[SpreadOption] = []
    links = Links(several.gpus, several.link_bytes_per_s)
    for budget in budgets:
        link = links.link_for(budget)
        found += spread(ledger, budget, several.gpus, link, several.step_s, _price(budget.id))
    return tuple(found)


def _holders(replayed: Replayed) -> tuple[MemoryHolder, ...]:
    return tuple(
        MemoryHolder(
            where=_from_here(*held.place[:3]) if held.place[0] else "",
            category=held.category,
            operator=_plain(held.place[3]),
            size_bytes=held.size_bytes,
            count=held.count,
        )
        for held in replayed.holders[:_HOLDERS]
    )


def _stacks(replayed: Replayed) -> tuple[MemoryStack, ...]:
    return tuple(
        MemoryStack(
            frames=tuple(_from_here(*call) for call in held.calls),
            category=held.category,
            operator=_plain(held.operator),
            size_bytes=held.size_bytes,
            count=held.count,
        )
        for held in replayed.stacks
    )


def _ways(ledger: LedgerFile, budgets: Sequence[Budget], imaginer: Imaginer) -> Plan:
    coming = (strategy.levers for strategy in strategies(ledger))
    at_once = min(_AT_ONCE, cores_allowed(read_host(places=())))
    with Ahead(imaginer.ledger, coming, at_once, imaginer.call_off) as imagine:
        return plan(ledger, budgets, imagine, _price)


def _price(gpu: str) -> float | None:
    price = price_table().cheapest(gpu)
    return price.usd_per_gpu_hour if price is not None else None


def _plain(operator: str) -> str:
    """As people call it: `addmm`."""
    return operator.removeprefix("aten::").lstrip("_").removesuffix("_for_cpu")


def _from_here(file: str, line: int, function: str) -> str:
    path = Path(file)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{short}:{line} in {function}"


def _ledger_of(trial: Trial, place: Path, command: JobCommand) -> LedgerFile:
    found = largest_ledger(place)
    if found is not None and is_enough(found, trial):
        return found
    insist_on_libraries(trial)
    said = "".join(f"\n    {line}" for line in trial.said[-8:])
    made = f"too few updates ({found.updates})" if found is not None else "no update"
    raise JobFailed(
        f"on an imagined GPU the script made {made} and ended as {trial.outcome!r}; it said last:{said}",
        expected="a script that trains in one process, and does not need values to go on",
        remedy=f"flatout check {command.typed()}   # does it run as written?",
    )


def _notes(ledger: LedgerFile, replayed: Replayed, trial: Trial) -> list[str]:
    notes = []
    if not trial.went_well:
        notes.append(f"what comes after update {ledger.updates} is not counted: {trial.ending}")
    if not replayed.allocated_bytes:
        notes.append("the script put nothing on the GPU: it trains on the CPU by its own choice")
    elif ledger.updates < _ENOUGH:
        notes.append("the script made one update: what an optimizer holds may not be in the peak")
    if "compile" in ledger.guessed:
        places = ", ".join(sorted(ledger.guessed["compile"])[:3])
        notes.append(f"what is compiled at {places} is counted as written: compiled, it keeps less as a rule")
    shapes = [kind for kind in ledger.guessed if kind not in ("item", "compile")]
    for kind in shapes:
        places = ", ".join(sorted(ledger.guessed[kind])[:3])
        notes.append(f"{kind} at {places} gives as much as its values say: counted at its largest")
    return notes
