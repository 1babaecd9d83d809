"""The checks of `flatout check`: each looks at one thing in the first updates, and says what to do."""

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flatout.analyze.inspection import Inspected
from flatout.records.check import ParameterState
from flatout.records.machine import CheckResult
from flatout.records.session import BY_HAND
from flatout.records.trial import Trial
from flatout.records.words import memory_size

_NAMES_AT_MOST = 8
# Of a step; more are micro-batches, as a rule.
_LOSSES_AT_MOST = 3
_CROWDED = 0.9


def check_first_updates(
    trial: Trial,
    seen: Inspected,
    again: Inspected | None,
    *,
    gpus: int,
    device_total_bytes: int | None,
) -> list[CheckResult]:
    """Everything that can be said from one closely watched trial and its repetition."""
    return [
        _runs(trial),
        _inputs(seen),
        _device(seen, gpus),
        _loss(seen),
        *_gradients(seen),
        _optimized(seen),
        # By the second run where there is one: looking closely makes the steps of the first longer.
        _loader(again or seen),
        _determinism(seen, again),
        _memory(seen, device_total_bytes),
        *_taps(trial),
    ]


def _runs(trial: Trial) -> CheckResult:
    if trial.outcome in ("stopped", "ended"):
        first = f"{trial.to_first_update_s:.1f} s" if trial.to_first_update_s is not None else "?"
        said = f"{trial.updates} updates, the first after {first}"
        return CheckResult(id="script.runs", status="ok", evidence=said)
    last = trial.culprit or (trial.said[-1] if trial.said else "it said nothing")
    how = {
        "failed": f"exit code {trial.exit_code}",
        "killed": f"signal {trial.signal}",
        "silent": "no progress",
    }
    return CheckResult(
        id="script.runs",
        status="fail",
        evidence=f"it ended after {trial.updates} updates with {how[trial.outcome]}: {last}",
        fix=f"less {shlex.quote(trial.folder)}/stderr.txt",
    )


def _inputs(seen: Inspected) -> CheckResult:
    if not seen.calls:
        return CheckResult(id="model.inputs", status="unknown", evidence="no call of a module was seen")
    # The roots that train; of losses, which are modules too, what they get is what a model made.
    roots = Counter(seen.rank.about.get("roots") or ())
    kinds = [kind for kind in dict.fromkeys(call["module"] for call in seen.calls) if kind in roots]
    told = [
        words for kind in kinds or [seen.calls[0]["module"]] for words in _calls_of(kind, roots[kind], seen)
    ]
    if len(told) > _NAMES_AT_MOST:
        told[_NAMES_AT_MOST:] = [f"and {len(told) - _NAMES_AT_MOST} more"]
    return CheckResult(id="model.inputs", status="ok", evidence="; ".join(told))


def _calls_of(kind: str, models: int, seen: Inspected) -> list[str]:
    """What models of one class get and give; calls do not say which of several of a class was called."""
    calls = [call for call in seen.calls if call["module"] == kind]
    by_shapes: dict[str, dict[str, Any]] = {}
    for call in calls:
        by_shapes.setdefault(shape_words(call["inputs"]), call)
    firsts = list(by_shapes.values())
    # Of as many shapes as there are models, each is told; of more, the first.
    told = [_call_words(call) for call in (firsts if len(firsts) <= models else firsts[:1])]
    if len(firsts) > max(1, models):
        of = f" of {models} models" if models > 1 else ""
        told.append(f"{len(firsts)} different input shapes in {len(calls)} calls{of}")
    return told


def _call_words(call: dict[str, Any]) -> str:
    text = f"{call['module']}: {shape_words(call['inputs'])} -> {shape_words(call['output'])}"
    return text + (f", autocast {call['autocast']}" if call["autocast"] else "")


def _device(seen: Inspected, gpus: int) -> CheckResult:
    places = sorted({parameter.device for parameter in seen.parameters})
    dtypes = sorted({parameter.dtype for parameter in seen.parameters})
    text = f"parameters in {', '.join(dtypes) or '?'} on {', '.join(places) or '?'}"
    if not places:
        return CheckResult(id="model.device", status="unknown", evidence="no parameter was seen")
    if gpus and all(place == "cpu" for place in places):
        return CheckResult(
            id="model.device",
            status="warn",
            evidence=f"{text}, although this machine has {gpus} GPU{'s' if gpus > 1 else ''}",
            fix='model.to("cuda"), and the batches too',
        )
    return CheckResult(id="model.device", status="ok", evidence=text)


def _loss(seen: Inspected) -> CheckResult:
    losses = seen.losses
    if not losses:
        return CheckResult(
            id="loss.finite",
            status="unknown",
            evidence="no loss was seen: backward() did not start from one number",
        )
    bad = [place for place, loss in enumerate(losses) if loss is not None and not math.isfinite(loss)]
    if bad:
        return CheckResult(
            id="loss.finite",
            status="fail",
            evidence=f"the loss of backward {bad[0] + 1} is {losses[bad[0]]}",
            fix="torch.autograd.set_detect_anomaly(True) names the operation; is the learning rate too high?",
        )
    known = [loss for loss in losses if loss is not None]
    if not known:
        return CheckResult(id="loss.finite", status="unknown", evidence="the losses could not be read")
    text = f"{_course(seen)} in {len(known)} backward passes, all finite"
    if len(known) > 2 and len(set(known)) == 1:
        return CheckResult(
            id="loss.finite",
            status="warn",
            evidence=f"the loss is {known[0]:.6g} each time",
            fix="is the batch always the same, the learning rate zero, or the loss detached from the model?",
        )
    return CheckResult(id="loss.finite", status="ok", evidence=text)


def _course(seen: Inspected) -> str:
    """From the first to the last; where a step has several losses, of each by its place in the step.

    Places are counted from the end: the first step may begin in the middle of a round.
    """
    steps = [[loss for loss in step["losses"] if loss is not None] for step in seen.rank.steps]
    # What a script does once, before its loop, is none of a step's.
    a_step = statistics.mode(sorted((len(losses) for losses in steps if losses), reverse=True))
    told = []
    for place in range(a_step if a_step <= _LOSSES_AT_MOST else 1, 0, -1):
        losses = [losses[-place] for losses in steps if len(losses) >= place]
        told.append(f"{losses[0]:.4g} -> {losses[-1]:.4g}" if len(losses) > 1 else f"{losses[0]:.4g}")
    text = ", ".join(told)
    if a_step == 1:
        return text
    return f"{text} ({'the last of ' if a_step > _LOSSES_AT_MOST else ''}{a_step} losses a step)"


def _gradients(seen: Inspected) -> list[CheckResult]:
    trainable = [p for p in seen.parameters if p.trainable]
    if not trainable:
        return [
            CheckResult(id="gradients.reach", status="unknown", evidence="no trainable parameter was seen")
        ]
    bad = [p for p in trainable if p.updates_with_bad_gradient]
    never = [p for p in trainable if _arrivals(p) == 0]
    zero = [p for p in trainable if _arrivals(p) and p.updates_with_zero_gradient == _arrivals(p)]
    found = []
    if bad:
        found.append(
            CheckResult(
                id="gradients.finite",
                status="fail",
                evidence=f"gradients that are not finite in {_names(bad)}",
                fix="clip gradients, lower the learning rate, or scale the loss in fp16",
            )
        )
    if never:
        found.append(
            CheckResult(
                id="gradients.reach",
                status="fail",
                evidence=f"no gradient reaches {len(never)} of {len(trainable)} parameters: {_names(never)}",
                fix="use them in the loss, or requires_grad_(False); DDP needs find_unused_parameters=True",
            )
        )
    if zero:
        found.append(
            CheckResult(
                id="gradients.zero",
                status="warn",
                evidence=f"the gradient is exactly zero in {_names(zero)}",
                fix="dead activations, a zero-initialised neighbour, or a detached branch",
            )
        )
    if not never:
        frozen = len(seen.parameters) - len(trainable)
        text = f"all {len(trainable)} trainable parameters" + (f", {frozen} are frozen" if frozen else "")
        found.append(CheckResult(id="gradients.reach", status="ok", evidence=f"gradients reach {text}"))
    return found


def _optimized(seen: Inspected) -> CheckResult:
    left_out = [p for p in seen.parameters if p.trainable and not p.optimized]
    if left_out:
        return CheckResult(
            id="optimizer.covers",
            status="warn",
            evidence=f"no optimizer updates {_names(left_out)}",
            fix="hand model.parameters() to the optimizer, or requires_grad_(False)",
        )
    stuck = [p for p in seen.parameters if p.optimized and p.updates_with_gradient and p.changed is False]
    if stuck:
        rates = sorted({p.learning_rate for p in stuck if p.learning_rate is not None})
        said = f" (learning rate {', '.join(f'{rate:g}' for rate in rates)})" if rates else ""
        return CheckResult(
            id="optimizer.covers",
            status="warn",
            evidence=f"gradients arrive, but nothing changes in {_names(stuck)}{said}",
            fix="a warm-up that starts at zero is fine; else look at the learning rate",
        )
    by_hand = BY_HAND in (seen.rank.about.get("optimizers") or ())
    who = "the script itself updates" if by_hand else "an optimizer holds"
    return CheckResult(id="optimizer.covers", status="ok", evidence=f"{who} every trainable parameter")


def _loader(seen: Inspected) -> CheckResult:
    loaders = seen.rank.about.get("loaders") or ()
    taken = {int(number): pair[0] for step in seen.rank.steps for number, pair in step["loaders"].items()}
    loaders = [entry for place, entry in enumerate(loaders) if place in taken]
    if not loaders:
        return CheckResult(id="loader.health", status="ok", evidence="the script uses no DataLoader")
    loader = loaders[0]
    # The first step holds everything since torch was loaded, and the start of the workers.
    steps = seen.rank.steps[1:] or seen.rank.steps
    step_ms = sum(s["ended_ns"] - s["started_ns"] - s["evaluation_ns"] for s in steps) / 1e6 / len(steps)
    wait_ms = sum(s["loader_ns"] for s in steps) / 1e6 / len(steps)
    samples = f", {loader['samples']} samples" if loader["samples"] is not None else ""
    size = loader["batch_size"]
    batches = f"batches of {size}" if size is not None else "batches of the script's own making"
    text = f"{batches}{samples}, {loader['num_workers']} workers"
    text += f": {wait_ms:.1f} ms wait a step"
    if loader["samples"] and loader["batch_size"] and loader["samples"] < loader["batch_size"]:
        return CheckResult(
            id="loader.health",
            status="warn",
            evidence=f"{text}; the data set is smaller than one batch",
            fix="a smaller batch size",
        )
    if wait_ms > 0.3 * step_ms:
        return CheckResult(
            id="loader.health",
            status="warn",
            evidence=f"{text}, {wait_ms / step_ms:.0%} of these first steps",
            fix="flatout profile --loader SCRIPT   # tries settings",
        )
    return CheckResult(id="loader.health", status="ok", evidence=text)


def _determinism(seen: Inspected, again: Inspected | None) -> CheckResult:
    if again is None:
        reason = "the second run made no update"
        return CheckResult(id="determinism", status="unknown", evidence=reason)
    first, second = seen.pairing, again.pairing
    if first["parameters"] != second["parameters"]:
        return CheckResult(
            id="determinism",
            status="warn",
            evidence="two runs with the same seed start from different parameters",
            fix="something is seeded by time or by the system: random.SystemRandom, numpy.default_rng()",
        )
    calls = zip(first["inputs"], second["inputs"], strict=False)
    update = next((a[0] + 1 for a, b in calls if a != b), None)
    if update is not None:
        return CheckResult(
            id="determinism",
            status="warn",
            evidence=f"two runs with the same seed see different batches, first in update {update}",
            fix="seed the sampler's generator and the workers (worker_init_fn)",
        )
    if len(first["inputs"]) != len(second["inputs"]):
        made = f"the first run made {len(first['inputs'])} training calls, the second {len(second['inputs'])}"
        return CheckResult(id="determinism", status="unknown", evidence=f"{made}: they cannot be compared")
    pairs = [
        (number, a, b)
        for number, (a, b) in enumerate(zip(seen.losses, again.losses, strict=False), start=1)
        if a is not None and b is not None
    ]
    differing = [
        pair for pair in pairs if pair[1] != pair[2] and not (math.isnan(pair[1]) and math.isnan(pair[2]))
    ]
    if differing:
        number, a, b = differing[0]
        return CheckResult(
            id="determinism",
            status="warn",
            evidence=f"same parameters, same batches, losses {a!r} and {b!r} in backward {number}",
            fix="torch.use_deterministic_algorithms(True) names the operation; usual and small on a GPU",
        )
    if not pairs:
        return CheckResult(id="determinism", status="unknown", evidence="no loss could be read to compare")
    return CheckResult(
        id="determinism",
        status="ok",
        evidence=f"two runs with the same seed gave the same {len(pairs)} losses, bit for bit",
    )


def _memory(seen: Inspected, device_total_bytes: int | None) -> CheckResult:
    steps = seen.rank.steps
    reserved = max((s["reserved_peak_bytes"] for s in steps if s.get("reserved_peak_bytes")), default=None)
    if reserved is not None:
        share = reserved / device_total_bytes if device_total_bytes else None
        text = f"{memory_size(reserved)} of the GPU" + (f", {share:.0%} of it" if share is not None else "")
        if share is not None and share > _CROWDED:
            return CheckResult(
                id="memory.room",
                status="warn",
                evidence=text,
                fix="longer batches or evaluation may not fit: a smaller batch, or activation checkpointing",
            )
        return CheckResult(id="memory.room", status="ok", evidence=text)
    host = max((s["host_peak_bytes"] for s in steps if s.get("host_peak_bytes")), default=None)
    if host is None:
        return CheckResult(id="memory.room", status="unknown", evidence="memory was not read")
    return CheckResult(id="memory.room", status="ok", evidence=f"{memory_size(host)} of the host at most")


def _taps(trial: Trial) -> list[CheckResult]:
    return [
        CheckResult(id=f"tap.{name.replace(' ', '_')}", status="unknown", evidence=f"could not watch: {why}")
        for name, why in sorted(trial.failed_taps.items())
    ]


def _arrivals(parameter: ParameterState) -> int:
    return (
        parameter.updates_with_gradient
        + parameter.updates_with_zero_gradient
        + parameter.updates_with_bad_gradient
    )


def _names(parameters: Sequence[ParameterState]) -> str:
    names = [parameter.name for parameter in parameters]
    more = f" and {len(names) - _NAMES_AT_MOST} more" if len(names) > _NAMES_AT_MOST else ""
    return ", ".join(names[:_NAMES_AT_MOST]) + more


def shape_words(tree: Any) -> str:
    """ "int64[64, 128]" for a tensor; nesting as it is, types where there is no tensor."""
    if isinstance(tree, dict) and set(tree) == {"shape", "dtype", "device"}:
        return f"{tree['dtype']}{tree['shape']}"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {shape_words(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return ", ".join(shape_words(value) for value in tree)
    return str(tree)
