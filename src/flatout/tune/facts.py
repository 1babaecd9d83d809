"""What the baseline showed, as levers need to know it; and the fingerprint of a job."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.analyze.profile import Peaks
from flatout.levers.job import JobFacts
from flatout.records.plan import Fingerprint
from flatout.records.profile import Profile
from flatout.records.version import __version__
from flatout.runtime.command import JobCommand


def job_facts(profile: Profile, about: Mapping[str, Any], peaks: Peaks) -> JobFacts:
    """From the baseline's profile, what its session learned, and the device's peaks."""
    habits = dict(about.get("habits") or {})
    step_ms = profile.step_ms.p50 if profile.step_ms is not None else 0.0
    habits["collector_share"] = profile.collector_ms / step_ms if step_ms else 0.0
    counted = about.get("flops") or {}
    habits["operators"] = counted.get("operators")
    habits["allocation_retries"] = profile.memory.allocation_retries
    capability = habits.get("capability")
    use = profile.device_use
    by_dtype: dict[str, float] = {}
    if peaks.rated is not None:
        by_dtype.update(peaks.rated.dense_flops_per_s.items())
    if peaks.limits is not None:
        by_dtype.update(peaks.limits.measured.matmul_flops_per_s.items())
    host = {share.part: share.share for share in profile.host}
    waterfall = {share.part: share.share for share in profile.waterfall}
    return JobFacts(
        device=profile.device or "cpu",
        capability=(capability[0], capability[1]) if capability else None,
        step_ms=step_ms,
        host_shares=host | {"input_wait": waterfall.get("input_wait", host.get("input", 0.0))},
        device_shares={share.part: share.share for share in profile.device_parts},
        busy_share=use.kernel_running_share,
        flops_per_step=profile.mfu.flops_per_step,
        peaks=by_dtype,
        micro_batches=profile.micro_batches,
        habits=habits,
        loaders=tuple(loader.settings for loader in profile.loaders),
        ranks=len(profile.ranks),
    )


def fingerprint(command: JobCommand, profile: Profile | None, about: Mapping[str, Any]) -> Fingerprint:
    """Which job this is: its script by content, its arguments, its device and versions."""
    words = command.given or command.words
    script, arguments = script_of(words)
    digest = hashlib.sha256(script.read_bytes()).hexdigest() if script is not None else ""
    return Fingerprint(
        script=str(script) if script is not None else " ".join(words[:2]),
        script_sha256=digest,
        arguments=tuple(arguments),
        device=(profile.device_name or profile.device or "") if profile is not None else "",
        torch=str(about.get("torch", "")),
        flatout=__version__,
    )


def places_below(folder: Path, where: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Places in files of the user's own folder; a library is not theirs to patch."""
    found = {}
    for name, (file, line) in where.items():
        path = (folder / file).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file() and "site-packages" not in path.parts:
            found[name] = (str(path.relative_to(folder.resolve())), int(line))
    return found


def script_of(words: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """The script among the words of a command line, and what follows it."""
    for place, word in enumerate(words):
        path = Path(word)
        if word.endswith((".py", ".sh", ".bash")) and path.is_file():
            return path, tuple(words[place + 1 :])
    return None, tuple(words[1:])
