"""What would make a job fit: strategies, each imagined, put through the allocator, held against a budget."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from flatout.memory.ahead import Imagine
from flatout.memory.replaying import Replayed, fits, replay
from flatout.memory.strategies import MICRO_BATCHES, Strategy, strategies
from flatout.records.fit import FitOption
from flatout.records.ledger import LedgerFile

# For each budget, so many ways that fit are enough.
_ENOUGH = 3
# Of the whole, how far off predictions have been so far.
ERROR_BAR = 0.02
# What driver, context and kernels take on a GPU, beside what torch reserves.
CONTEXT_BYTES = 560 << 20


class Budget(Protocol):
    """A GPU, or so much of one."""

    @property
    def id(self) -> str:
        """What to call it."""

    @property
    def usable_bytes(self) -> int:
        """What there is of it."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What would fit, and the least that anything tried here takes on one GPU."""

    options: tuple[FitOption, ...]
    least_bytes: int
    least_words: str


class _Found:
    """What fits into a budget so far."""

    def __init__(self) -> None:
        self._count = 0
        self._kinds: set[str] = set()

    @property
    def is_enough(self) -> bool:
        """Whether nothing more needs to be tried."""
        return self._count >= _ENOUGH

    def wants(self, strategy: Strategy) -> bool:
        """Whether it would say something new."""
        return not self.is_enough and strategy.kind not in self._kinds

    def note(self, strategy: Strategy, option: FitOption) -> None:
        """What came of it."""
        if option.fits is not True:
            return
        # Parts of a batch come beside what levers do, which can be had without a line of code.
        self._count += strategy.kind != MICRO_BATCHES
        if strategy.kind:
            self._kinds.add(strategy.kind)


def plan(
    ledger: LedgerFile, budgets: Sequence[Budget], imagine: Imagine, price: Callable[[str], float | None]
) -> Plan:
    """Strategies in the order of their cost, until each budget has a few that fit."""
    ledgers: dict[tuple[str, ...], LedgerFile | None] = {(): ledger}
    fitting = {budget.id: _Found() for budget in budgets}
    options: list[FitOption] = []
    least, least_words = replay(ledger).reserved_bytes, "as written"
    for strategy in strategies(ledger):
        if all(found.is_enough for found in fitting.values()):
            break
        wanting = [budget for budget in budgets if fitting[budget.id].wants(strategy)]
        changed = _ledger_under(strategy, ledgers, imagine) if wanting else None
        if changed is None:
            continue
        replayed = replay(changed)
        if strategy.gpus == 1 and replayed.reserved_bytes < least:
            least, least_words = replayed.reserved_bytes, strategy.words
        for budget in wanting:
            option = option_of(budget, strategy, changed, replayed, price(budget.id))
            fitting[budget.id].note(strategy, option)
            options.append(option)
    return Plan(tuple(options), least + CONTEXT_BYTES, least_words)


def option_of(
    budget: Budget, strategy: Strategy, ledger: LedgerFile, replayed: Replayed, usd_per_hour: float | None
) -> FitOption:
    """With room for whatever it reserves it fits; with less it may, where cached memory is given back."""
    room = budget.usable_bytes - CONTEXT_BYTES
    answers = {fits(ledger, round(room * (1 + by))) for by in (-ERROR_BAR, ERROR_BAR)}
    needed = replayed.reserved_bytes + CONTEXT_BYTES
    return FitOption(
        strategy=strategy.words,
        gpu=budget.id,
        gpus=strategy.gpus,
        memory_bytes=budget.usable_bytes,
        fits=answers.pop() if len(answers) == 1 else None,
        is_tight=needed > budget.usable_bytes,
        peak_bytes=needed,
        predicted_slowdown=strategy.slowdown,
        changes_training=strategy.changes_training,
        how=strategy.how,
        levers=strategy.plan,
        usd_per_hour=usd_per_hour * strategy.gpus if usd_per_hour is not None else None,
    )


def _ledger_under(
    strategy: Strategy, ledgers: dict[tuple[str, ...], LedgerFile | None], imagine: Imagine
) -> LedgerFile | None:
    key = tuple(choice.words() for choice in strategy.levers)
    if key not in ledgers:
        # What does not apply alone does not apply beside others.
        refused = any(ledgers.get((one,), ...) is None for one in key)
        ledgers[key] = None if refused else imagine(strategy.levers)
    found = ledgers[key]
    return strategy.rework(found) if found is not None and strategy.rework is not None else found
