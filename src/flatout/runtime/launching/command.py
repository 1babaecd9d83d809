"""The command line on a node: `flatout run` with the plan, and torchrun where there are several processes.

Words are quoted for bash, except where the target's own variables stand in them.
"""

from flatout.records.launch import LaunchJob
from flatout.runtime.launching.shell import quoted

TORCHRUN = "torch.distributed.run"


def run_words(job: LaunchJob, plan_there: str | None) -> list[str]:
    """`python -m flatout run ...` up to where the job's own words begin."""
    plan = ["--plan", plan_there] if plan_there is not None else ["--as-written"]
    module = ["-m"] if job.program.kind == "module" and not job.is_under_torchrun else []
    protect = ["--protect"] if job.is_protected else []
    return [job.python, "-m", "flatout", "run", *plan, *protect, *module, "--"]


def torchrun_words(job: LaunchJob) -> list[str]:
    """torchrun by the same Python, and those of its options that the user gave."""
    if not job.is_under_torchrun:
        return []
    return [job.python, "-m", TORCHRUN, *job.program.torchrun_options]


def program_words(job: LaunchJob) -> list[str]:
    """The program itself, after torchrun's options."""
    module = ["-m"] if job.program.kind == "module" and job.is_under_torchrun else []
    return [*module, *job.program.words]


def all_words(job: LaunchJob, plan_there: str | None, meeting: list[str]) -> list[str]:
    """The whole, with `meeting` as torchrun's words on how many there are and where they meet."""
    under = [*torchrun_words(job), *meeting] if job.is_under_torchrun else []
    return [*run_words(job, plan_there), *under, *program_words(job)]


def quoted_lines(job: LaunchJob, plan_there: str | None, meeting: list[str]) -> list[str]:
    """The same for bash, a few words a line; `meeting` is quoted already."""
    lines = [_line(run_words(job, plan_there))]
    if job.is_under_torchrun:
        lines += [_line(torchrun_words(job)), *meeting]
    program = program_words(job)
    return [*lines, _line(program)]


def _line(words: list[str]) -> str:
    return " ".join(map(quoted, words))
