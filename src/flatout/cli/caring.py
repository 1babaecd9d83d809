"""What keeps a job under `flatout run` safe, as options: protection, restarts, hangs, grace, ranks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flatout.cli.options import Duration
from flatout.records.errors import CallerMistake

F = TypeVar("F", bound=Callable[..., Any])


class UpdatesOrTime(click.ParamType):  # type: ignore[type-arg]
    """`500` updates, or `90s`, `5m`, `1h`; as a pair of which one is 0."""

    name = "updates or time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Updates, and seconds."""
        if isinstance(value, tuple):
            return value
        if value.isdecimal() and int(value):
            return int(value), 0.0
        return 0, Duration().convert(value, param, ctx)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wishes:
    """What was asked for."""

    protect: bool
    save_every: tuple[int, float]
    fresh: bool
    rehearsal: bool
    retries: int
    on_hang: str
    hang_after: float | None
    grace: float | None
    # Whether a limit for the first update was given by name.
    ends_starts: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks:
    """How many processes, on how many machines; nothing where the script starts its own, or is one."""

    nproc_per_node: str | None
    nnodes: str | None
    node_rank: int | None
    rdzv_endpoint: str | None

    def insist_on_processes(self) -> None:
        """Where machines meet says nothing of a script that runs as it is."""
        lonely = (("--rdzv-endpoint", self.rdzv_endpoint), ("--node-rank", self.node_rank))
        for flag, value in lonely:
            if value is not None and self.nproc_per_node is None and self.nnodes is None:
                raise CallerMistake(
                    f"{flag} without ranks",
                    expected="--nnodes or --nproc-per-node beside it",
                    remedy=f"flatout run --nnodes 2 --nproc-per-node 8 {flag} {value} ...",
                )

    def command(self, words: tuple[str, ...], *, as_module: bool) -> tuple[str, ...] | None:
        """torchrun's words for the module `torch.distributed.run`, or None where nobody asked for ranks."""
        if self.nproc_per_node is None and self.nnodes is None:
            return None
        options = ["--nproc-per-node", self.nproc_per_node or "1"]
        if self.nnodes is not None:
            options += ["--nnodes", self.nnodes]
        if self.node_rank is not None:
            options += ["--node-rank", str(self.node_rank)]
        if self.rdzv_endpoint is not None:
            options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", self.rdzv_endpoint]
            options += ["--rdzv-id", "flatout"]
        elif self.nnodes is None or self.nnodes == "1":
            options += ["--standalone"]
        return ("torch.distributed.run", *options, *(("-m",) if as_module else ()), *words)


_OF_WISHES = (
    click.option(
        "--protect",
        is_flag=True,
        help="Save as it goes, and go on from there when the same command is started again.",
    ),
    click.option(
        "--save-every",
        type=UpdatesOrTime(),
        default="5m",
        show_default=True,
        metavar="UPDATES|TIME",
        help="With --protect: how often.",
    ),
    click.option("--fresh", is_flag=True, help="With --protect: begin anew, and forget what was saved."),
    click.option(
        "--rehearsal/--no-rehearsal",
        default=True,
        show_default=True,
        help="With --protect: before the first start, see in two short trials that it can be brought back.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Start it again so often when it ends badly, after pauses of 1, 2, 4 ... seconds.",
    ),
    click.option(
        "--on-hang",
        type=click.Choice(["tell", "stop", "restart"]),
        default="tell",
        show_default=True,
        help="No step for far longer than usual: where all ranks stand is told; then nothing, or end it.",
    ),
    click.option(
        "--hang-after",
        type=Duration(),
        metavar="TIME",
        help="What counts as a hang. Default: --silence-limit where that is given, else a minute, 30 usual "
        "steps, 3 times its longest silence. A start without an update within --startup-limit is told, too, "
        "and ended where that limit is given.",
    ),
    click.option(
        "--grace",
        type=Duration(),
        metavar="TIME",
        help="Asked to end (SIGTERM, SIGUSR1, Ctrl-C), it is killed after so long. Default: never.",
    ),
)
_OF_RANKS = (
    click.option(
        "--nproc-per-node",
        metavar="N|gpu|cpu",
        help="Run the script in so many processes, by torchrun.",
    ),
    click.option("--nnodes", metavar="N|MIN:MAX", help="On so many machines; the same command on each."),
    click.option("--node-rank", type=click.IntRange(min=0), help="Which of the machines this is."),
    click.option(
        "--rdzv-endpoint", metavar="HOST:PORT", help="Where the machines meet: one of them, and a free port."
    ),
)


def care_options(command: F) -> F:
    """The command receives them as `wishes` and `ranks`."""

    @functools.wraps(command)
    def with_wishes(*args: Any, **kwargs: Any) -> Any:
        wishes = _wishes_in(kwargs)
        ranks = Ranks(**{field.name: kwargs.pop(field.name) for field in dataclasses.fields(Ranks)})
        ranks.insist_on_processes()
        return command(*args, wishes=wishes, ranks=ranks, **kwargs)

    wrapped: Any = with_wishes
    for option in reversed((*_OF_WISHES, *_OF_RANKS)):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _wishes_in(given: dict[str, Any]) -> Wishes:
    """Taken out of what was given; limits count as wishes where somebody has named them."""
    names = [field.name for field in dataclasses.fields(Wishes) if field.name != "ends_starts"]
    wishes = Wishes(**{name: given.pop(name) for name in names}, ends_starts=is_named("startup_limit"))
    if not wishes.protect:
        for option in ("save_every", "fresh", "rehearsal"):
            insist_on_what_it_is_for(option, "--protect")
    if wishes.hang_after is None and is_named("silence_limit"):
        wishes = dataclasses.replace(wishes, hang_after=given["silence_limit"])
    return wishes


def insist_on_what_it_is_for(option: str, other: str) -> None:
    """An option that says how another one works says nothing alone: nobody may think that it does."""
    if is_named(option):
        flag = f"--{option.replace('_', '-')}"
        raise CallerMistake(
            f"{flag} without {other}",
            expected=f"{other} beside it: alone it does nothing",
            remedy=f"flatout run {other} {flag} ...",
        )


def is_named(option: str) -> bool:
    """Whether the user gave it."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE
