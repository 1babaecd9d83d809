"""A job under a profiler that stands outside of it: Nsight Systems and Nsight Compute.

The tool becomes the first words of the job's own command, in a trial of its own: it slows the job, so nothing
is timed there. It waits for CUDA's sign to begin, which the session gives at a step after the job has warmed
up (`inside/ranges.py`), and what it leaves is read as any file of its kind.
"""

import dataclasses
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.ncu import beside_a_trace
from flatout.analyze.trace.summary import summarize
from flatout.records.errors import ChildFailed, EnvironmentProblem
from flatout.records.profile import Profile
from flatout.records.trace import TraceSummary
from flatout.records.trial import Trial
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# Steps that nsys sees, and that pass before; ncu runs each kernel many times, so it sees one step.
_WARM_UP, _STEPS = 10, 20
_MOST_LAUNCHES = 2000
# Under such a tool a step can take minutes, and a report is written after the last.
_SILENCE_S = 1800.0
_EXPORT_S = 1800.0
_SAID_AT_MOST = 300
_PRODUCTS = {
    "nsys": ("Nsight Systems", "https://developer.nvidia.com/nsight-systems", "nsight-systems"),
    "ncu": ("Nsight Compute", "https://developer.nvidia.com/nsight-compute", "nsight-compute"),
}
# Where NVIDIA's packages put their tools, often without telling the shell.
_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/{folder}/*/bin", "/opt/nvidia/{folder}/*")


class Window(NamedTuple):
    """Updates: those that pass first, and the last that a tool sees."""

    warm_up: int
    last: int


def find_tool(name: str) -> str:
    """Its path; raises where it is not to be had, before anything runs."""
    found = shutil.which(name)
    if found is not None:
        return found
    product, page, folder = _PRODUCTS[name]
    elsewhere = _elsewhere(name, folder)
    raise EnvironmentProblem(
        f"{name} is not on PATH",
        expected=f"{name} of {product}, for --{name}",
        remedy=f"PATH={elsewhere}:$PATH flatout profile --{name} ..." if elsewhere else f"install it: {page}",
    )


def look_from_outside(
    tools: Sequence[str], request: ProfileRequest, profile: Profile, folder: Path, on_progress: OnProgress
) -> TraceSummary:
    """The job of a profile under each of the tools, and what they saw."""
    runs = {"nsys": _under_nsys, "ncu": _under_ncu}
    window = _window(request, profile)
    files = [runs[tool](request, folder, window, on_progress) for tool in tools]
    try:
        found = summarize(files)
    except NotATrace as error:  # a file of the tool's making, not of the caller's choice
        raise EnvironmentProblem(
            error.received,
            expected="a job that uses a GPU, and the right to look at its counters",
            remedy=f"does {' '.join(tools)} work without Flatout? https://developer.nvidia.com/ERR_NVGPUCTRPERM",
        ) from error
    if not found.kernels and profile.trace is not None:  # counters alone: torch's profiler saw the times
        seen = {kernel.name: kernel.ms for kernel in profile.trace.kernels}
        found = dataclasses.replace(found, counters=beside_a_trace(found.counters, seen))
    return found


def _under_nsys(request: ProfileRequest, folder: Path, window: Window, on_progress: OnProgress) -> Path:
    """Some steps under Nsight Systems; the file that `nsys export` made of its report."""
    nsys = find_tool("nsys")
    place = folder.resolve() / TRIALS_FOLDER / "nsys"
    words = (
        nsys,
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        # Graphs by their kernels: a whole graph says nothing.
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        f"--output={place / 'report'}",
        "--force-overwrite=true",
    )
    trial = _run("nsys", words, request, place, window, on_progress)
    report = next((path for path in place.glob("report.*") if path.suffix in (".nsys-rep", ".qdrep")), None)
    if report is None:
        raise _left_nothing("nsys", "report", trial, window)
    on_progress("nsys: exporting its report", 0, 0)
    exported = place / "report.sqlite"
    _export((nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={exported}", str(report)))
    return exported


def _under_ncu(request: ProfileRequest, folder: Path, window: Window, on_progress: OnProgress) -> Path:
    """One step under Nsight Compute; the table that it printed."""
    ncu = find_tool("ncu")
    place = folder.resolve() / TRIALS_FOLDER / "ncu"
    window = Window(window.warm_up, window.warm_up + 1)
    counters = place / "kernels.csv"
    words = (
        ncu,
        "--csv",
        *("--page", "raw"),
        *("--set", "basic"),
        # What the basic set lacks: how busy the tensor cores are.
        *("--section", "ComputeWorkloadAnalysis"),
        *("--target-processes", "all"),
        # As the job runs, not as a comparison between cards would have it.
        *("--clock-control", "none"),
        *("--profile-from-start", "off"),
        *("--launch-count", str(_MOST_LAUNCHES)),
        *("--log-file", str(counters)),
    )
    trial = _run("ncu", words, request, place, window, on_progress)
    if not counters.exists():
        raise _left_nothing("ncu", "table", trial, window)
    return counters


def _window(request: ProfileRequest, profile: Profile) -> Window:
    """What fits into the time that was given, and into the updates of a job that came to its own end."""
    steps = request.steps or _STEPS
    if profile.step_ms is not None:
        steps = min(steps, max(2, int(request.seconds * 1000 / profile.step_ms.p50)))
    warm_up, last = min(_WARM_UP, steps), min(_WARM_UP, steps) + steps
    if profile.trial.outcome == "ended":
        warm_up, last = min(warm_up, profile.updates // 2), min(last, profile.updates)
    warm_up = max(1, warm_up)  # the session knows where a step begins once an update has ended
    return Window(warm_up, max(warm_up + 1, last))


def _run(
    tool: str,
    words: Sequence[str],
    request: ProfileRequest,
    place: Path,
    window: Window,
    on_progress: OnProgress,
) -> Trial:
    plan = TrialPlan(
        name=tool,
        command=dataclasses.replace(request.command, words=(*words, *request.command.words)),
        stop=StopRule(updates=window.last),
        order={**request.order, "seed": request.seed, "nvtx": True, "capture_from": window.warm_up + 1},
        startup_s=request.startup_s,
        silence_s=max(request.silence_s, _SILENCE_S),
        environment=request.environment,
    )
    return run_trial(plan, place, on_progress=on_progress)


def _export(words: Sequence[str]) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=_EXPORT_S, errors="replace")
    except (OSError, subprocess.SubprocessError) as error:
        said = " ".join(
            (getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)).split()
        )
        raise ChildFailed(
            f"nsys could not export its report: {said[-_SAID_AT_MOST:]}",
            expected="a report that nsys reads back",
            remedy=shlex.join(words),
        ) from error


def _left_nothing(tool: str, thing: str, trial: Trial, window: Window) -> EnvironmentProblem:
    said = "; ".join(line.strip() for line in trial.said[-3:]) or "it said nothing"
    return EnvironmentProblem(
        f"{tool} left no {thing} after {trial.updates} updates; the last that was said: {said}",
        expected=f"a job that uses a GPU and makes more than {window.warm_up} updates",
        remedy=f"what was said is in {trial.folder}; does {tool} work without Flatout?",
    )


def _elsewhere(name: str, folder: str) -> str:
    for pattern in _PLACES:
        for place in sorted(Path("/").glob(pattern.format(folder=folder).lstrip("/")), reverse=True):
            if (place / name).is_file():
                return str(place)
    return ""
