"""What goes into the user's process (an `Order`), and the names of what comes out.

Read and written with the standard library alone: the user's environment may hold nothing of ours but this.

    <folder>/
      stop.json                   from outside: the update after which every rank stops
      arms.json                   from outside: levers to try by turns (`inside/bench.py`)
      arm.txt                     which of them is on
      waiting, turn               this run is about to train, and from outside: it may
      stopped                     the exit code of a training that was asked to stop, and has saved
      shield.txt                  what was kept from leaving, or could not be shielded, a line each
      workers/<pid>.json          what a DataLoader worker spent its time on
      starting/<rank>-<pid>/      heartbeat and stacks of a process until its first update
      ranks/<rank>-<pid>/
        session.json              what there is to know of the process, beside its steps
        events.jsonl              what happened, an array of events a line (`inside/log.py`)
        inspection.json           where the order asked for it: shapes, gradients, checksums
        guard.json                where the order asked for it: gradients and parameters, as sketches
        rank<n>.pt.trace.json.gz  where the order asked for it: a few steps under torch's profiler
        rank<n>-details.pt...     more of them, with shapes, memory, and Python's stacks if ordered
        rank<n>-step<u>.pt...     where a run is watched: steps of it under the profiler
        alarms.jsonl              where a run is watched: when its steps became slower, a line each
        recording                 there while a profiler records: a job that dies then died of that
        ledger.json               where the order asked for it: what an imagined GPU was asked for
        out-of-memory.json        where there was no more: what held it
        not-finite.json           where a job was stopped because its gradients were not finite: why
        out-of-memory.pickle      the same as torch's own snapshot, on a GPU
        heartbeat                 where the order asked for it: how many updates, and when the last was
        stacks.txt                where it stood when it was asked (`inside/heartbeat.py`)
        memory-history.pickle     where the order asked for it: torch's record of memory, on a GPU
        stopped                   this rank has reached the update at which all stop
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

# Names the order's file. Its presence arms the hook; without it the hook costs one look-up.
SESSION_VARIABLE = "FLATOUT_SESSION"
# Beside the order: the exit code of a training that was asked to stop, and has saved.
ASKED_TO_STOP_FILE = "stopped"
# "<pid>:<mark>" of the process that keeps a trial; its children end when it is gone.
KEEPER_VARIABLE = "FLATOUT_KEEPER"

ORDER_VERSION = 1
RANKS_FOLDER = "ranks"
SESSION_FILE = "session.json"
EVENTS_FILE = "events.jsonl"
# Stands for a number that a device has not delivered yet; it comes with the step's device times.
ON_ITS_WAY = "?"
INSPECTION_FILE = "inspection.json"
WORKERS_FOLDER = "workers"
# Of processes that have made no update yet: a heartbeat each, as in `ranks`.
STARTING_FOLDER = "starting"
STOP_FILE = "stop.json"
ARMS_FILE = "arms.json"
ARM_FILE = "arm.txt"
WAITING_FILE = "waiting"
TURN_FILE = "turn"
# Among the names of optimizers: the script has none, and updates its parameters itself.
BY_HAND = "updates by hand"
GUARD_FILE = "guard.json"
STOPPED_FILE = "stopped"
NOTES_FILE = "shield.txt"
# So named that TensorBoard finds them.
TRACE_FILE = "rank{rank}.pt.trace.json.gz"
RECORDING_FILE = "recording"
LEDGER_FILE = "ledger.json"
OUT_OF_MEMORY_FILE = "out-of-memory.json"
OUT_OF_MEMORY_SNAPSHOT = "out-of-memory.pickle"
MEMORY_HISTORY_FILE = "memory-history.pickle"
ALARMS_FILE = "alarms.jsonl"
DETAILS_FILE = "rank{rank}-details.pt.trace.json.gz"

# How calls of modules are marked in a recording: this, and the module's name.
MODULE_MARK = "flatout.module: "

# Every tap by name; each can be left out, and each can fail alone.
TAPS = (
    "steps",
    "device",
    "loader",
    "workers",
    "copies",
    "forward",
    "backward",
    "clipping",
    "memory",
    "collector",
    "compiler",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """What a session in the user's process is to do."""

    folder: str
    taps: tuple[str, ...] = TAPS
    # A trial may be ended at a step boundary, and ends itself when its keeper is gone.
    trial: bool = False
    stop_after_updates: int | None = None
    seed: int | None = None
    # Checksums of the roots' parameters and inputs, for the first updates: proof that two runs saw the same.
    pair_updates: int = 0
    # Shapes, dtypes, devices and gradients, looked at closely for the first updates.
    inspect_updates: int = 0
    # After the last timed step of a trial, count the operations of one more.
    count_flops: bool = False
    # After the last timed step of a trial, record some more under torch's profiler.
    record: Literal["", "kernels", "stacks"] = ""
    # Look at a long run every so many updates, and tell when its steps become slower; 0: never.
    watch_every: int = 0
    # Tell whoever watches from outside that it is alive (`inside/heartbeat.py`).
    heartbeat: bool = False
    # At the end of a trial, look for who holds what its steps left behind, whether or not memory grew in it.
    find_holders: bool = False
    # NVTX ranges for epoch, data, forward, loss, backward and optimizer.
    nvtx: bool = False
    # With these, the step at which a profiler outside of the process (nsys, ncu) is to begin.
    capture_from: int | None = None
    # DataLoader settings to use instead of the script's own (num_workers, pin_memory, ...).
    loader: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Levers that are on from the first training call: `{"id": ..., "settings": {...}}` each.
    levers: tuple[dict[str, Any], ...] = ()
    # They are of a plan, which may have been made elsewhere: each is checked before it comes on.
    check_levers: bool = False
    # Follow the parent's file of arms, and change levers at step boundaries.
    bench: bool = False
    # Yield the first batches of each loader again and again.
    repeat_batches: bool = False
    # Train on tensors without memory, and note what they would take on a GPU (`memory/imagined`).
    imagine: bool = False
    # Sketches of gradients and parameters in the first updates, for the guard.
    guard_updates: int = 0
    # The script infers: a step is an outermost call of its model, or of `generate`.
    infer: bool = False
    # Before the first training call, change each parameter by so much of itself, at random.
    perturb: float = 0.0
    # Runs share a device that not all of them fit on: wait for a turn before the first training call.
    takes_turns: bool = False
    # Which of several perturbations.
    perturbation: int = 0
    # Compiled code draws the random numbers that code as written would draw.
    same_random: bool = False
    # Data sets draw the same random numbers in workers as in the loop.
    same_samples: bool = False
    # Save as it goes, and come back to where it was: a `records.protection.Protection`, as plain data.
    protect: dict[str, Any] | None = None
    # What becomes of updates that are not finite: "skip" or "stop", and after how many in a row it stops.
    on_nan: str = ""
    patience: int = 0
    # Debug switches that are on, by name (`inside/debugging`).
    debug: tuple[str, ...] = ()
    # What trackers write offline during a trial.
    aside: str | None = None
    # Where writes go when no file system overlay protects the user's files.
    redirect_to: str | None = None
    redirect_except: tuple[str, ...] = ()
    version: int = ORDER_VERSION

    def write(self, path: Path) -> None:
        """Write the order for the child to find."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> "Order":
        """Read an order; fields that we do not know are ignored."""
        plain: dict[str, Any] = json.loads(path.read_text())
        if plain.get("version") != ORDER_VERSION:
            raise ValueError(f"{path} has order version {plain.get('version')!r}, not {ORDER_VERSION}")
        known = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in plain.items() if name in known}
        given["taps"] = tuple(given.get("taps", TAPS))
        given["redirect_except"] = tuple(given.get("redirect_except", ()))
        given["debug"] = tuple(given.get("debug", ()))
        given["levers"] = tuple(given.get("levers", ()))
        return cls(**given)


def lever_key(lever: str, settings: dict[str, Any]) -> str:
    """A lever with its settings, as both sides of the wall name it."""
    return json.dumps([lever, settings], sort_keys=True)
