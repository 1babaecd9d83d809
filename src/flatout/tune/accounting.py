"""What a job under `flatout run` is expected to do, and what it cost in the end."""

import dataclasses
import shlex
from pathlib import Path, PurePath

from flatout.analyze.cost import cost_of, job_time_of
from flatout.records.plan import Fingerprint, Plan
from flatout.records.running import JobRun
from flatout.runtime.command import JobCommand
from flatout.runtime.live_document import Promise
from flatout.runtime.living import Living

_NAME_AT_MOST = 80


def promise_of(command: JobCommand, plan: Plan, now: Fingerprint, protected: Path | None) -> Promise:
    """What is known of a job before it starts; a plan for another job promises nothing."""
    is_its_plan = not plan.job.why_no_promise(now)
    return Promise(
        name=_name(command),
        script=now.script,
        samples_per_s=plan.samples_per_s if is_its_plan else None,
        mfu=plan.mfu if is_its_plan else None,
        has_levers=bool(plan.levers),
        protected=protected,
    )


def with_account(done: JobRun, living: Living) -> JobRun:
    """How a job went, with its energy, its cost and what clock limits took, where these are known."""
    live, own, epoch = living.latest, living.own, living.seen.epoch()
    no_epoch = "no pass over the data was seen from beginning to end"
    done = dataclasses.replace(
        done,
        epoch_s=epoch[0] if epoch is not None else None,
        unknown={**done.unknown, **({"epoch_s": no_epoch} if epoch is None else {})},
    )
    if live is None or not own.devices:
        return dataclasses.replace(
            done, unknown={**done.unknown, "cost": own.reason, "throttling": own.reason}
        )
    time = dataclasses.replace(
        job_time_of(live),
        gpus=len(own.devices),
        steps=living.seen.updates_made(),
        steps_per_epoch=epoch[1] if epoch is not None else None,
        energy=own.energy(),
    )
    return dataclasses.replace(done, cost=cost_of(time, own.price()), throttling=own.throttling())


def _name(command: JobCommand) -> str:
    words = command.given or command.words
    text = shlex.join((PurePath(words[0]).name, *words[1:]))
    return text if len(text) <= _NAME_AT_MOST else text[: _NAME_AT_MOST - 3] + "..."
