"""Each finding: where it is, where it just is not, and where too little is known to say."""

import dataclasses
from typing import Any

import pytest

from flatout.diagnose.catalogue import BY_CODE, RULES
from flatout.diagnose.engine import findings_of
from flatout.diagnose.rule import Rule, Seen
from flatout.levers.job import JobFacts
from flatout.records.profile import CompileUse, DeviceUse, LoaderUse, MemoryUse, Mfu, RankUse, Share
from tests.profiles import GIB, profile

PEAKS = {"fp32": 51e12, "tf32": 396e12, "bf16": 780e12}
ADAMW = {"name": "AdamW", "fused": None, "foreach": None, "supports_fused": True}
HABITS = {
    "parameter_dtype": "float32",
    "tf32": False,
    "autocast": "",
    "cores": 16,
    "optimizers": [ADAMW],
}
WHERE = {"root_call": ("train.py", 40), "optimizer": ("train.py", 12)}


def seen(habits: dict[str, Any] | None = None, job: dict[str, Any] | None = None, **changes: Any) -> Seen:
    facts = {
        "device": "cuda:0",
        "capability": (9, 0),
        "step_ms": 100.0,
        "host_shares": {"forward": 0.2, "backward": 0.2, "optimizer": 0.1},
        "device_shares": {"forward": 0.3, "backward": 0.6, "optimizer": 0.01},
        "busy_share": 0.99,
        "flops_per_step": 3.5e12,
        "peaks": PEAKS,
        "habits": {**HABITS, **(habits or {})},
    }
    return Seen(profile=profile(**changes), job=JobFacts(**{**facts, **(job or {})}), where=WHERE)


def waits(share: float) -> dict[str, Any]:
    return {"waterfall": (Share(part="input_wait", ms=1.0, share=share),)}


def copies(share: float, pinned: bool = False) -> dict[str, Any]:
    loader = LoaderUse(
        data_set="Data", settings={"num_workers": 4, "pin_memory": pinned}, batches=9, wait_ms=0.1
    )
    return {"waterfall": (Share(part="host_to_device", ms=1.0, share=share),), "loaders": (loader,)}


def workers(count: int) -> dict[str, Any]:
    settings = {"num_workers": count, "pin_memory": True}
    return {"loaders": (LoaderUse(data_set="Data", settings=settings, batches=9, wait_ms=0.1),)}


def memory(share: float, **more: Any) -> MemoryUse:
    reserved = int(share * 100 * GIB)
    return MemoryUse(reserved_peak_bytes=reserved, device_total_bytes=100 * GIB, **more)


def compiled(**more: Any) -> CompileUse:
    known = {
        "compiles": 3,
        "recompiles": 2,
        "compile_s": 40.0,
        "compiles_in_steady_state": 0,
        "graph_breaks": {},
    }
    return CompileUse(**{**known, **more})


def mfu(of_rated: float | None) -> Mfu:
    return Mfu(of_rated=of_rated, of_measured=None, peak_dtype="bf16", flops_per_step=1, reason="not known")


def ranks(*times: float | None) -> tuple[RankUse, ...]:
    return tuple(
        RankUse(rank=number, pid=number, device="cuda:0", step_ms=time, updates=9)
        for number, time in enumerate(times)
    )


LAUNCHING = {"busy_share": 0.5, "host_shares": {"forward": 0.4, "backward": 0.4, "optimizer": 0.1}}
# By code: what shows it, what just does not, and what knows too little.
CASES: dict[str, tuple[Seen, list[Seen], list[Seen]]] = {
    "F101": (seen(**waits(0.4)), [seen(**waits(0.04))], [seen(waterfall=())]),
    "F102": (
        seen(**workers(32)),
        [seen(**workers(16))],
        [seen({"cores": None}, **workers(32)), seen(loaders=())],
    ),
    "F103": (
        seen(**copies(0.1)),
        [seen(**copies(0.01)), seen(**copies(0.1, pinned=True)), seen(job={"device": "cpu"}, **copies(0.1))],
        [seen(waterfall=(), loaders=())],
    ),
    "F201": (
        seen(job=LAUNCHING),
        [
            seen(),
            seen(job=LAUNCHING, **waits(0.45)),
            seen(job={**LAUNCHING, "host_shares": {"forward": 0.1}}),
        ],
        [seen(job={**LAUNCHING, "busy_share": None}), seen(job={**LAUNCHING, "device": "cpu"})],
    ),
    "F202": (seen({"collector_share": 0.05}), [seen({"collector_share": 0.005})], [seen()]),
    "F203": (seen({"anomaly_mode": True}), [seen({"anomaly_mode": False})], [seen()]),
    "F301": (
        seen(),
        [seen({"tf32": True}), seen(job={"capability": (7, 5)}), seen(job={"step_ms": 10_000.0})],
        [seen(job={"peaks": {}}), seen(job={"habits": {}}), seen(job={"flops_per_step": None})],
    ),
    "F302": (
        seen(),
        [seen({"autocast": "bf16"}), seen({"parameter_dtype": "bfloat16"}), seen(job={"capability": (7, 0)})],
        [seen(job={"peaks": {}}), seen(job={"habits": {}})],
    ),
    "F303": (
        seen(job={"device_shares": {"optimizer": 0.2}}),
        [
            seen(job={"device_shares": {"optimizer": 0.02}}),
            seen({"optimizers": [{**ADAMW, "fused": True}]}, {"device_shares": {"optimizer": 0.2}}),
        ],
        [seen(job={"device_shares": {"optimizer": 0.2}, "habits": {}})],
    ),
    "F401": (seen(compile=compiled(compiles_in_steady_state=2)), [seen(compile=compiled())], [seen()]),
    "F402": (seen(compile=compiled(graph_breaks={"print": 3})), [seen(compile=compiled())], [seen()]),
    "F501": (seen(memory=memory(0.95)), [seen(memory=memory(0.9))], [seen(memory=MemoryUse())]),
    "F502": (
        seen(memory=memory(0.1), mfu=mfu(0.1)),
        [seen(memory=memory(0.4), mfu=mfu(0.1)), seen(memory=memory(0.1), mfu=mfu(0.55))],
        [seen(memory=memory(0.1), mfu=mfu(None)), seen(memory=MemoryUse(), mfu=mfu(0.1))],
    ),
    "F503": (
        seen(memory=memory(0.5, allocation_retries=3)),
        [seen(memory=memory(0.5, allocation_retries=0))],
        [seen(memory=memory(0.5))],
    ),
    "F601": (
        seen(device_use=DeviceUse(samples=3, throttle_reasons=("sw_power_cap",), clock_compute_hz=10**9)),
        [seen(device_use=DeviceUse(samples=3, throttle_reasons=("idle",)))],
        [seen(device_use=DeviceUse(samples=0))],
    ),
    "F701": (
        seen(ranks=ranks(10.0, 10.1, 12.0)),
        [seen(ranks=ranks(10.0, 10.2))],
        [seen(ranks=ranks(10.0, None))],
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_it_is_found_where_it_is_and_nowhere_else(rule: Rule) -> None:
    there, near_misses, too_little = CASES[rule.code]
    finding = rule.look(there)
    assert finding is not None
    assert (finding.code, finding.title) == (rule.code, rule.title)
    assert finding.evidence
    assert finding.fix
    if finding.predicted_speedup is not None:
        assert 1.0 < finding.predicted_speedup < 20
        assert finding.arithmetic
    for case in (*near_misses, *too_little):
        assert rule.look(case) is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_its_page_says_what_it_sees_and_when_it_is_wrong(rule: Rule) -> None:
    assert "Seen by" in rule.explanation
    assert len(rule.explanation.split()) > 25
    assert BY_CODE[rule.code] is rule


def test_lines_of_the_script_are_named() -> None:
    there = CASES["F303"][0]
    finding = BY_CODE["F303"].look(there)
    assert finding is not None
    assert [(place.file, place.line) for place in finding.where] == [("train.py", 12)]
    assert BY_CODE["F303"].look(dataclasses.replace(there, where={})).where == ()  # type: ignore[union-attr]


def test_what_should_give_most_comes_first_and_a_rule_that_breaks_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Seen) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("flatout.diagnose.engine.RULES", (*RULES, Rule("F999", "broken", broken)))
    found = findings_of(seen(**waits(0.9)))
    gains = [finding.predicted_speedup or 1.0 for finding in found]
    assert gains == sorted(gains, reverse=True)
    assert found[0].code == "F101"
    assert "planted" in found[-1].evidence


def test_codes_are_unique() -> None:
    assert len(BY_CODE) == len(RULES)
