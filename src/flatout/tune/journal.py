"""What tuning wrote down on its way: every comparison as it was answered, and the losses that it saw.

comparisons.jsonl lets an interrupted search go on where it was; guard.jsonl is what the guard made of each
plan; losses.json is what `flatout run` holds the first steps of the real job against.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flatout.records.errors import CallerMistake
from flatout.records.plan import Choice, Fingerprint
from flatout.records.profile import Profile
from flatout.records.tuning import GuardEvidence
from flatout.tune.arms import ArmResult, Ask

if TYPE_CHECKING:
    from flatout.tune.proof import Proof

COMPARISONS_FILE = "comparisons.jsonl"
GUARD_FILE = "guard.jsonl"
LOSSES_FILE = "losses.json"
JOB_FILE = "tuned-job.json"
# Answers hold where these are what they were.
_CONDITIONS = ("script_sha256", "arguments", "device", "torch", "flatout")
# As far as `run` looks.
FIRST_STEPS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenLosses:
    """Losses of the job as written, and of its perturbed twins, with the proof of what they began with."""

    as_written: list[float | None]
    twins: list[list[float | None]]
    roundoff: float
    pairing: dict[str, Any]
    # Whether the job draws random numbers as it trains: under levers, it may draw others.
    draws: bool = False


class Journal:
    """The files of one tuning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, ask: Ask, results: Sequence[ArmResult], *, at_s: float, took_s: float) -> None:
        """One comparison, as it was answered."""
        entry = {
            "at_s": at_s,
            "took_s": took_s,
            "what": ask.what,
            "arms": [
                {"levers": [choice.words() for choice in arm], **dataclasses.asdict(result)}
                for arm, result in zip(ask.arms, results, strict=True)
            ],
        }
        with (self._folder / COMPARISONS_FILE).open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def add_judgement(self, levers: Sequence[Choice], evidence: GuardEvidence) -> None:
        """What the guard made of some levers."""
        told = {key: value for key, value in dataclasses.asdict(evidence).items() if key != "curves"}
        entry = {"levers": [choice.words() for choice in levers], **told}
        with (self._folder / GUARD_FILE).open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def write_losses(self, baseline: Profile, guard: GuardEvidence, proof: "Proof") -> None:
        """What `run` needs to go on where the guard ended."""
        if guard.verdict == "not needed" or not guard.curves:
            return
        twins = [curve for name, curve in guard.curves.items() if name.startswith("twin")]
        seen = SeenLosses(
            # The baseline's own run went on for longer than the guard's; both began alike.
            as_written=list(baseline.losses[:FIRST_STEPS]),
            twins=twins,
            roundoff=proof.roundoff,
            pairing=proof.pairing,
            draws=proof.draws,
        )
        (self._folder / LOSSES_FILE).write_bytes(msgspec.json.encode(seen))


def read_losses(folder: Path) -> SeenLosses | None:
    """What tuning saw, or None where it is not here."""
    try:
        return msgspec.json.decode((folder / LOSSES_FILE).read_bytes(), type=SeenLosses)
    except (OSError, msgspec.DecodeError):
        return None


def write_job(
    folder: Path,
    job: Fingerprint,
    base: Sequence[Choice],
    *,
    repeated: bool = False,
    loader_is_done: bool = True,
) -> None:
    """Which job is tuned here, where, on top of what, with whose batches: for whoever wants to go on."""
    words = [choice.words() for choice in base]
    loader = next((choice for choice in base if choice.id == "loader"), None)
    document = {
        "job": job,
        "base": words,
        "repeated": repeated,
        "loader": loader,
        "loader_is_done": loader_is_done,
    }
    (folder / JOB_FILE).write_bytes(msgspec.json.encode(document))


def earlier_loader(folder: Path, job: Fingerprint) -> tuple[Choice | None, bool]:
    """What an earlier tuning of this job found for its loader, and whether it had looked."""
    earlier = _earlier(folder)
    if earlier is None or _differences(earlier.job, job):
        return None, False
    return earlier.loader, earlier.loader_is_done


def insist_on_the_same_job(folder: Path, job: Fingerprint) -> None:
    """Refuse to go on with the tuning of another script, or with other arguments."""
    earlier = _earlier(folder)
    if earlier is None:
        raise CallerMistake(
            f"{folder.name} is no tuning that could be gone on with",
            expected="a run of `flatout tune` that has begun to try levers",
            remedy="flatout report   # lists the runs",
        )
    compared = ("script", "script_sha256", "arguments")
    differences = [name for name in compared if getattr(earlier.job, name) != getattr(job, name)]
    if differences:
        raise CallerMistake(
            f"{folder.name} tuned another job: its {' and '.join(differences)} differ",
            expected="the same script with the same arguments",
            remedy="leave --resume away, and begin anew",
        )


def read_answers(
    folder: Path, job: Fingerprint, base: Sequence[Choice], *, repeated: bool = False
) -> tuple[dict[str, list[ArmResult]], str]:
    """What an earlier tuning has answered, by what was compared; or why that says nothing here."""
    earlier = _earlier(folder)
    if earlier is None:
        return {}, "what was to be resumed is gone"
    differences = _differences(earlier.job, job)
    if earlier.base != [choice.words() for choice in base]:
        differences.append("loader")
    if earlier.repeated != repeated:
        differences.append("whose batches levers were timed with")
    if differences:
        return {}, f"nothing could be resumed: {' and '.join(differences)} differ from then"
    answers: dict[str, list[ArmResult]] = {}
    try:
        lines = (folder / COMPARISONS_FILE).read_text().splitlines()
    except OSError:
        return answers, ""
    for line in lines:
        try:
            entry = json.loads(line)
            arms = [arm.pop("levers") for arm in entry["arms"]]
            results = [_read_back(msgspec.convert(arm, ArmResult)) for arm in entry["arms"]]
        except (ValueError, KeyError, msgspec.ValidationError):
            continue  # the last line of a tuning that was killed may be half of one
        if not any(result.failed for result in results):  # what failed may have failed for another reason
            answers[json.dumps(arms)] = results
    return answers, ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Earlier:
    """Which job an earlier tuning was of, and under what it asked for comparisons."""

    job: Fingerprint
    base: list[str]
    repeated: bool
    loader: Choice | None
    # Whether its settings were looked for to the end.
    loader_is_done: bool = True


def _earlier(folder: Path) -> _Earlier | None:
    try:
        return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=_Earlier)
    except (OSError, msgspec.DecodeError):
        return None


def _differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    return [name for name in _CONDITIONS if getattr(then, name) != getattr(now, name)]


def _read_back(result: ArmResult) -> ArmResult:
    """JSON has no infinity: an interval that could be anything comes back without its ends."""
    if result.speedup is None:
        return result
    low = -math.inf if result.low is None else result.low
    high = math.inf if result.high is None else result.high
    return dataclasses.replace(result, low=low, high=high)
