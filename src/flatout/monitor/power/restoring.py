"""Puts limits back to what was found, and never over what somebody else has set meanwhile."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.hardware.power_limits import PowerControls, PowerRefused
from flatout.monitor.power.claims import Purpose, boot_id, drop_claim, read_claims
from flatout.records.power import LimitRestored, PowerClaim, RestoreOutcome

# Drivers may round a limit; whoever sets another one on purpose sets it further away than this.
SAME_MW = 500
# A GPU that does not answer may come back: so long it is asked again.
PATIENCE_S = 20.0
_AGAIN_S = 1.0


def restore_all(
    folder: Path,
    controls: PowerControls,
    *,
    purpose: Purpose = "claim",
    patience_s: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[LimitRestored], list[str]]:
    """Every limit of which there is a note; notes go once their limit is no longer ours."""
    claims, problems = read_claims(folder, purpose)
    deadline = time.monotonic() + patience_s
    done: list[LimitRestored] = []
    waiting: Sequence[PowerClaim] = claims
    while waiting:
        outcomes = [restore(folder, claim, controls, purpose=purpose) for claim in waiting]
        again = [claim for claim, found in zip(waiting, outcomes, strict=True) if _may_come_back(found)]
        if not again or time.monotonic() >= deadline:
            return [*done, *outcomes], problems
        done += [found for found in outcomes if not _may_come_back(found)]
        waiting = again
        controls.close()  # a new session may be all that it takes
        sleep(_AGAIN_S)
    return done, problems


def restore(
    folder: Path, claim: PowerClaim, controls: PowerControls, *, purpose: Purpose = "claim"
) -> LimitRestored:
    """One limit. What is neither what was found nor ours was set by somebody else, and stays."""
    control = controls.of(claim.vendor)
    now_mw: int | None = None
    try:
        now_mw = control.limits(claim.uuid).limit_mw
        outcome = _to_do(claim, now_mw)
        if outcome == "restored":
            control.set_limit(claim.uuid, claim.found_mw)
            now_mw = control.limits(claim.uuid).limit_mw
            if not same(now_mw, claim.found_mw):
                raise PowerRefused("other", f"it was set, and the device still says {now_mw / 1000:g} W")
    except PowerRefused as refused:
        kept = f"; an administrator would type: {claim.command}" if claim.command else ""
        reason = f"{refused.kind}: {refused.reason}{kept}"
        return _result(claim, now_mw, "failed", reason)
    drop_claim(folder, claim.uuid, purpose)
    return _result(claim, now_mw, outcome)


def _to_do(claim: PowerClaim, now_mw: int) -> RestoreOutcome:
    if same(now_mw, claim.found_mw):
        return "as found already"
    here = boot_id()
    if claim.boot_id and here and claim.boot_id != here:
        return "machine restarted"
    ours = any(same(now_mw, mine) for mine in claim.ours_mw)
    return "restored" if ours else "changed by others"


def same(one_mw: int, other_mw: int) -> bool:
    """Whether both are the same limit, as drivers round."""
    return abs(one_mw - other_mw) <= SAME_MW


def _may_come_back(found: LimitRestored) -> bool:
    return found.outcome == "failed" and not found.reason.startswith(("permission", "not supported"))


def _result(
    claim: PowerClaim, now_mw: int | None, outcome: RestoreOutcome, reason: str = ""
) -> LimitRestored:
    return LimitRestored(
        uuid=claim.uuid,
        index=claim.index,
        found_mw=claim.found_mw,
        now_mw=now_mw,
        outcome=outcome,
        reason=reason,
    )
