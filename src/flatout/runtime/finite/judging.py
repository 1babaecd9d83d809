"""When skipping is not enough, when to say something, and what there is to say."""

from collections.abc import Sequence
from typing import Any

from flatout.records.errors import JobFailed
from flatout.records.finite import Diagnosis, Policy
from flatout.runtime.finite.gradients import parameters_of, plain_values
from flatout.runtime.finite.ledger import Ledger, Outcome

# Names that a diagnosis keeps.
_NAMES = 64
# In a row: this many are how a GradScaler looks for its scale, and no news.
_SCALERS_OWN = 4


class NotFinite(JobFailed):
    """A training whose updates are not finite was stopped; `diagnosis` says what is known of it.

    Parameters, states and schedule are those of the last good update: none of the bad ones was made.
    """

    def __init__(self, diagnosis: Diagnosis, kept: str = "") -> None:
        self.diagnosis = diagnosis
        said = (diagnosis.headline(), *diagnosis.lines(), *((kept,) if kept else ()))
        super().__init__("\n  ".join(said), expected="finite gradients", remedy=diagnosis.remedy())


def is_enough(ledger: Ledger, outcome: Outcome, policy: Policy, patience: int) -> bool:
    """Whether this skipped update ends it: the first one under "stop", else so many in a row.

    A loss that is scaled and finite says nothing yet: gradients overflow while its scale is looked for.
    """
    if not outcome.was_skipped:
        return False
    is_search = outcome.loss_scale is not None and outcome.loss_is_finite is not False
    return (policy == "stop" and not is_search) or ledger.in_a_row >= patience


def word_on(ledger: Ledger, outcome: Outcome) -> str:
    """What to tell of a skipped update; nothing of those between powers of two, in a row."""
    count = ledger.in_a_row
    is_search = outcome.loss_scale is not None and outcome.loss_is_finite is not False
    if not outcome.was_skipped or count & (count - 1) or (is_search and count < _SCALERS_OWN):
        return ""
    text = f"update {outcome.update} "
    text += "is not finite and could not be skipped" if outcome.let_through else "is skipped"
    if outcome.batch:
        text += f" ({outcome.batch})"
    if outcome.bad:
        text += f": gradients of {len(outcome.bad)} of {len(outcome.owners)} parameters are not finite"
    elif outcome.owners:
        text += ": another rank's gradients are not finite"
    if outcome.loss is not None:
        text += f", loss {outcome.loss:g}"
    if outcome.loss_scale is not None:
        text += f", loss scale {outcome.loss_scale:g}"
    return text + (f"; {count} in a row" if count > 1 else "")


def diagnose(
    torch: Any,
    ledger: Ledger,
    optimizer: Any,
    models: Sequence[Any],
    rank: int,
    *,
    spoiled: Sequence[str] = (),
) -> Diagnosis:
    """Why the last updates were not finite. The host waits for it: there is nothing else to do.

    `spoiled`: what else is known to be not finite, by name.
    """
    first = ledger.first or Outcome(ledger.updates, False, None, None)
    names = names_in(models, optimizer)
    order = {name: place for place, name in enumerate(names.values())}
    bad = sorted((names[id(one)] for one in first.bad), key=order.__getitem__)
    having = [names[id(one)] for one in first.owners]
    return Diagnosis(
        update=first.update,
        in_a_row=ledger.in_a_row,
        optimizer=type(optimizer).__qualname__,
        parameters=tuple(bad[:_NAMES]),
        not_finite=len(bad),
        with_gradients=len(having),
        arose_at=_where_it_arose(bad, having, order),
        values_not_finite=tuple([*_bad_values(torch, parameters_of(optimizer), names), *spoiled][:_NAMES]),
        loss_is_finite=first.loss_is_finite,
        last_finite_loss=ledger.last_finite_loss,
        loss_scales=tuple(ledger.loss_scales),
        batch=first.batch,
        rank=rank,
    )


def names_in(models: Sequence[Any], optimizer: Any) -> dict[int, str]:
    """A name for each parameter, by its id, in the models' order."""
    names: dict[int, str] = {}
    for model in models:
        prefix = f"{type(model).__qualname__}." if len(models) > 1 else ""
        for name, one in model.named_parameters():
            names.setdefault(id(one), f"{prefix}{name}")
    for place, group in enumerate(optimizer.param_groups):
        for index, one in enumerate(group["params"]):
            names.setdefault(id(one), f"parameter {index} of group {place}")
    return names


def _where_it_arose(bad: list[str], having: list[str], order: dict[str, int]) -> str:
    """Backward passes go from the last to the first: what is bad last in the model was bad first."""
    if not bad or len(bad) == len(having):
        return ""
    last = order.get(bad[-1], -1)
    return bad[-1] if any(order.get(name, -1) > last for name in having) else ""


def _bad_values(torch: Any, parameters: list[Any], names: dict[int, str]) -> list[str]:
    found = []
    with torch.no_grad():
        for one in parameters:
            values = plain_values(torch, one.detach())
            if values is not None and not bool(torch.isfinite(values).all()):
                found.append(names[id(one)])
    return found
