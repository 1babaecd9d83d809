"""Every tool: its command, which of its options an agent may use, and what needs the user's leave."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click

from flatout.cli.agents.arguments import Field, Kind, from_options, text, texts, words_for
from flatout.cli.agents.places import Root
from flatout.cli.commands import COMMANDS
from flatout.records.errors import CallerMistake

# What `--allow` takes: what each lets an agent do.
PERMISSIONS = {
    "run": "run a job to its end, with its files and its environment",
    "stop": "end jobs of this user",
    "power": "set power limits of GPUs",
    "plan": "write a plan where you name it, over one that is there",
    "skills": "copy the skills into a folder",
}

# How long a command gets between SIGTERM and SIGKILL.
GRACE_S = 5.0
_JOB_GRACE_S = 60.0

_JOB = ("cpu", "startup-limit", "silence-limit")
_SCRIPT = (
    text(
        "script", "A Python or shell script, or a package's folder: a path inside of the root.", kind="script"
    ),
    text("module", "Instead of a script: a module inside of the root, as in python -m.", kind="module"),
    texts("arguments", "The script's own arguments, each a word of its own."),
)
_RUN = text("run", "A run's id or its beginning, `latest`, or its folder inside of the root.", kind="run")


def _harmless(_given: Mapping[str, Any]) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Tool:
    """A command as an agent sees it."""

    name: str
    command: str
    options: tuple[str, ...] = ()
    more: tuple[Field, ...] = ()
    kinds: Mapping[str, Kind] = dataclasses.field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    # What the command's own words would tell an agent wrongly.
    said_otherwise: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: Callable[[Mapping[str, Any]], str | None] = _harmless
    takes_turns: bool = False  # two measurements at a time would measure each other
    own_python: bool = False  # it has --python
    grace_s: float = GRACE_S

    @property
    def always_needs(self) -> str | None:
        """The permission without which there is nothing that it could do."""
        harmless = {"dry_run": True, "measure": True}
        return self.needs(harmless)

    @property
    def click_command(self) -> click.Command:
        """The real one."""
        command: click.Command = importlib.import_module(COMMANDS[self.command].module).command
        if isinstance(command, click.Group):
            return command.commands[self.fixed[0]]
        return command

    @functools.cached_property
    def fields(self) -> tuple[Field, ...]:
        """Everything that it takes."""
        found = (*from_options(self.click_command, self.options, self.kinds), *self.more)
        return tuple(
            dataclasses.replace(field, says=self.said_otherwise.get(field.name, field.says))
            for field in found
        )

    @property
    def reads_only(self) -> bool:
        """Whether nothing that it can be asked for needs leave, and no script runs, which may do anything."""
        return self.needs is _harmless and not self.runs_a_script

    @property
    def runs_a_script(self) -> bool:
        """One of the agent's choice."""
        return self.more[:2] == _SCRIPT[:2]

    @property
    def says(self) -> str:
        """What the command's help says, without its examples."""
        paragraphs = (self.click_command.help or "").split("\n\n")
        kept = [" ".join(one.split()) for one in paragraphs if "\b" not in one and one.strip()]
        return "\n\n".join(kept)

    def words(self, given: Mapping[str, Any], root: Root, python: str | None) -> list[str]:
        """The command line behind `flatout`."""
        if self.runs_a_script:
            self._insist_on_one_job(given)
        asked = [f"--python={python}"] if python and self.own_python else []
        asked += ["--module"] if given.get("module") is not None else []
        return [self.command, *self.fixed, "--json", *asked, *words_for(self.fields, given, root)]

    def _insist_on_one_job(self, given: Mapping[str, Any]) -> None:
        named = [name for name in ("script", "module", "load", "hf") if given.get(name)]
        if self.command != "fit" and not named:
            raise CallerMistake(
                "no script was named", expected="a script inside of the root", remedy="script: train.py"
            )
        if {"script", "module"} <= set(named):
            raise CallerMistake("both a script and a module", expected="one of them", remedy="leave one away")


def _plan(given: Mapping[str, Any]) -> str | None:
    return "plan" if given.get("plan") is not None else None


def _stop(given: Mapping[str, Any]) -> str | None:
    return None if given.get("dry_run") is True else "stop"


def _power(given: Mapping[str, Any]) -> str | None:
    reads = given.get("measure") is True or given.get("job") is None
    changes = any(given.get(name) for name in ("apply", "restore"))
    return "power" if changes or not reads else None


def _job(name: str, *options: str, **more: Any) -> Tool:
    """A tool that runs a script."""
    more.setdefault("takes_turns", True)
    return Tool(name, name, (*options, *_JOB), _SCRIPT, own_python=True, **more)


TOOLS: tuple[Tool, ...] = (
    Tool("doctor", "doctor", own_python=True),
    Tool("limits", "limits", ("device", "dtype", "fresh", "no-cpu", "ranks", "no-link"), takes_turns=True),
    _job("check", "steps", "seed"),
    _job(
        *(
            "profile",
            "steps",
            "seconds",
            "loader",
            "seed",
            "no-trace",
            "plan",
            "against",
            "infer",
            "no-limits",
        ),
        kinds={"plan": "path", "against": "run"},
    ),
    Tool(
        *("trace", "trace", ("top",)),
        more=(texts("files", "Traces inside of the root.", kind="path", required=True),),
    ),
    _job(
        *("tune", "budget", "goal", "max-memory", "only", "skip", "allow", "resume", "job-steps", "plan"),
        *("infer", "seed"),
        kinds={"plan": "path", "resume": "run"},
        said_otherwise={"plan": "Where to write the plan, if that is allowed. Default: into .flatout/plans."},
        needs=_plan,
    ),
    _job(
        *("fit", "gpu", "gpus", "link", "step-ms", "max-memory", "batch", "hf", "context", "load"),
        kinds={"hf": "path", "load": "path"},
        takes_turns=False,
    ),
    _job("batch", "plan", "max-memory", "headroom", "most", kinds={"plan": "path"}),
    Tool("report", "report", ("folder",), (_RUN,), {"folder": "path"}),
    Tool("ps", "ps"),
    Tool("watch", "watch", ("device", "runs"), kinds={"runs": "path"}, fixed=("--once",)),
    Tool(
        "explain", "explain", more=(text("code", "A finding's code, such as F101; without it, all of them."),)
    ),
    Tool("cost", "cost", ("all", "usd-per-hour", "epoch-samples", "folder"), (_RUN,), {"folder": "path"}),
    Tool("gpus", "gpus", more=(texts("names", "Ids such as h100-80gb-sxm, or their beginnings."),)),
    Tool(
        *("power", "power", ("slowdown", "measure", "apply", "restore", "gpu")),
        more=(text("job", "A job's name or pid, as `ps` has it."),),
        needs=_power,
        takes_turns=True,
        grace_s=20.0,  # limits are put back as they were found
    ),
    Tool(
        *("stop", "stop", ("grace", "orphans", "dry-run")),
        more=(texts("jobs", "Names or pids, as `ps` has them."),),
        needs=_stop,
    ),
    Tool(
        *("run", "run", ("plan", "as-written", "protect", "save-every", "on-nan", "retries", *_JOB), _SCRIPT),
        kinds={"plan": "path"},
        fixed=(f"--grace={_JOB_GRACE_S:.0f}s",),
        needs=lambda _given: "run",
        takes_turns=True,
        own_python=True,
        grace_s=_JOB_GRACE_S + GRACE_S,
    ),
    Tool(
        *("skills_install", "skills", ("to", "force")),
        kinds={"to": "path"},
        fixed=("install",),
        needs=lambda _given: "skills",
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
