"""What a kill does to a job: four small jobs are really killed, and what is left of each is looked at."""

import dataclasses
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from flatout.learn.bench import Bench
from flatout.learn.jobs.killed import CHECKPOINT
from flatout.learn.killing import (
    Child,
    Killed,
    Way,
    job,
    killed_while_checkpointing,
    killed_while_saving,
    told_to_stop,
)
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.saying import paragraphs, sentence
from flatout.records.learn import (
    Advice,
    BarPicture,
    LearnBar,
    LearnFigure,
    Listing,
    TablePicture,
    Taught,
)
from flatout.records.words import memory_size, percent

_NAMES: dict[tuple[Way, str], str] = {
    ("plain", "SIGKILL"): "torch.save over the old file, SIGKILL while it saved",
    ("careful", "SIGKILL"): "Checkpointer, SIGKILL while it saved",
    ("plain", "SIGTERM"): "torch.save, SIGTERM between two saves",
    ("careful", "SIGTERM"): "Checkpointer, SIGTERM between two saves",
}

_CODES = sentence(
    """A code below 0 is the signal that ended it: -9 SIGKILL, -15 SIGTERM. 143 is 128 + 15: it was asked,
    and ended by itself."""
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KillMeasured:
    """Four jobs that were killed."""

    jobs: tuple[Killed, ...]


def measure(bench: Bench) -> KillMeasured:
    """Start all four, and end each at its instant."""
    plans: tuple[tuple[Way, Callable[[Child, Path], Killed]], ...] = (
        ("plain", killed_while_saving),
        ("careful", killed_while_checkpointing),
        ("plain", partial(told_to_stop, way="plain")),
        ("careful", partial(told_to_stop, way="careful")),
    )
    bench.say("four small jobs train, and are killed")
    with tempfile.TemporaryDirectory(dir=bench.scratch) as name, ThreadPoolExecutor(len(plans)) as pool:
        folders = [Path(name) / str(number) for number in range(len(plans))]
        ended = list(pool.map(_killed, folders, *zip(*plans, strict=True)))
        bench.say("loading what is left")
        ended[0] = _with_load_error(bench, ended[0], folders[0] / CHECKPOINT)
    return KillMeasured(jobs=tuple(ended))


def _killed(folder: Path, way: Way, kill: Callable[[Child, Path], Killed]) -> Killed:
    with job(way, folder) as child:
        return kill(child, folder)


def _with_load_error(bench: Bench, killed: Killed, file: Path) -> Killed:
    """What torch says to the file that a kill left; ours, written a moment ago, and still not unpickled."""
    try:
        kept = bench.torch.load(file, weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever it says is the lesson
        words = " ".join(str(error).split()).split(". ")[0]
        return dataclasses.replace(killed, load_error=f"{type(error).__name__}: {words}"[:200])
    return dataclasses.replace(killed, steps_kept=int(kept["step"]))


def teach(found: KillMeasured, setting: Setting) -> Taught:  # noqa: ARG001 - a kill is the same everywhere
    """What was lost, and why."""
    plain_kill, careful_kill, *_ = found.jobs
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=sentence(
            """Of {done} steps, a job killed while it saved over its old file kept {kept}; one that wrote
            under another name first kept {careful} of {careful_done}.""",
            done=plain_kill.steps_done,
            kept=plain_kill.steps_kept,
            careful=careful_kill.steps_kept,
            careful_done=careful_kill.steps_done,
        ),
        pictures=(_bars(found), _table(found), _listing(plain_kill)),
        seen=_seen(found.jobs),
        advice=(
            Advice(
                command="flatout run --protect train.py",
                why="an unmodified script: saved as it goes, and the same command goes on from there",
            ),
            Advice(
                command='flatout.Checkpointer("kept", model=model, optimizer=optimizer, loader=loader)',
                why="in a loop of your own: what the careful jobs here did",
            ),
            Advice(
                command="flatout stop train.py",
                why="asks a job to save and end, and kills it only when it does not",
            ),
        ),
        figures=tuple(_figures(found)),
        notes=("The jobs were real processes of this lesson, of 12.6 M parameters; no other was touched.",),
    )


def _bars(found: KillMeasured) -> BarPicture:
    bars = []
    for one in found.jobs:
        name = _NAMES[one.way, one.signal]
        lost = max(0, one.steps_done - one.steps_kept)
        bars.append(LearnBar(label=name, value=float(one.steps_done), words=f"{one.steps_done} steps done"))
        bars.append(
            LearnBar(label="", value=float(one.steps_kept), words=f"{one.steps_kept} kept, {lost} lost")
        )
    return BarPicture(
        title="Steps that were done, and steps that can be gone on from", unit="steps", bars=tuple(bars)
    )


def _table(found: KillMeasured) -> TablePicture:
    return TablePicture(
        title="What the rest of the world saw",
        header=("job", "exit code", "steps done", "lines of its log that arrived"),
        rows=tuple(
            (_NAMES[one.way, one.signal], str(one.exit_code), str(one.steps_done), str(one.lines_printed))
            for one in found.jobs
        ),
        caption=_CODES,
    )


def _listing(killed: Killed) -> Listing:
    share = percent(killed.half_bytes / killed.whole_bytes)
    return Listing(
        title="The half-written file",
        lines=(
            f"{CHECKPOINT}: {memory_size(killed.half_bytes)} of {memory_size(killed.whole_bytes)} ({share})",
            f"begins with  {killed.first_bytes}   (50 4b is a zip archive: so far so good)",
            f"ends with    {killed.last_bytes}   (a whole one ends with the list of what is in it)",
            f"torch.load:  {killed.load_error or 'it can be read after all'}",
        ),
        caption="It has the name of the good checkpoint that it replaced: whoever looks for one finds this.",
    )


_SEEN = """
SIGKILL cannot be answered: no handler, no finally, no atexit. It is what the out-of-memory killer, a
machine that goes away and an impatient scheduler use. What counts is what is on the disk at that instant.

Opening a file for writing empties it first. Until the last byte is there, there is neither the old
checkpoint nor the new one: here {half} of a file that nothing can read.

Written under another name, synced, and then renamed, the new one appears whole or not at all. The careful
job was at {careful_half} under a name that nobody reads, and left the checkpoint of step {careful_kept} as
it was. What it lost are the steps since then.

SIGTERM can be answered, and Python by itself does not: it dies at once. The plain job lost {term_lost}
steps since its last save, and {lost_lines} lines of its log that were still in a buffer. The careful one
finished its step, saved, and lost {careful_lost}.
"""


def _seen(jobs: tuple[Killed, ...]) -> tuple[str, ...]:
    plain_kill, careful_kill, plain_term, careful_term = jobs
    return paragraphs(
        _SEEN,
        half=memory_size(plain_kill.half_bytes),
        careful_half=memory_size(careful_kill.half_bytes),
        careful_kept=careful_kill.steps_kept,
        term_lost=plain_term.steps_done - plain_term.steps_kept,
        lost_lines=plain_term.steps_done - plain_term.lines_printed,
        careful_lost=careful_term.steps_done - careful_term.steps_kept,
    )


def _figures(found: KillMeasured) -> list[LearnFigure]:
    figures = []
    for one in found.jobs:
        name = _NAMES[one.way, one.signal]
        figures.append(LearnFigure(name=f"{name}: done", value=float(one.steps_done), unit="steps"))
        figures.append(LearnFigure(name=f"{name}: kept", value=float(one.steps_kept), unit="steps"))
        figures.append(LearnFigure(name=f"{name}: exit code", value=float(one.exit_code), unit="number"))
        figures.append(
            LearnFigure(name=f"{name}: lines of log", value=float(one.lines_printed), unit="number")
        )
    return figures


LESSON = Lesson(
    id="kill",
    title="What a kill does to a job",
    question="Killed in the middle of a save: what is lost, and what is left?",
    seconds=12,
    record=KillMeasured,
    measure=measure,
    teach=teach,
    on_device=False,
)
