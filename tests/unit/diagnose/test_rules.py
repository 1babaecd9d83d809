"""Each finding: where it is, where it just is not, and where too little is known to say."""

import dataclasses
from typing import Any

import pytest

from flatout.diagnose.catalogue import BY_CODE, RULES
from flatout.diagnose.engine import findings_of
from flatout.diagnose.rule import Rule, Seen
from flatout.levers.job import JobFacts
from flatout.records.finding import Place
from flatout.records.memory_growth import MemoryHolder
from flatout.records.profile import (
    CompileUse,
    DeviceUse,
    LineUse,
    LoaderSweep,
    LoaderUse,
    MemoryUse,
    Mfu,
    ProductShape,
    SweepRow,
)
from flatout.records.ranks import RankUse
from flatout.records.step import Share
from flatout.records.trace import KernelUse, OperatorUse, SyncPoint, TraceSummary
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


def swept(*rates: float | None, best: dict[str, Any] | None = None, reason: str = "tried") -> LoaderSweep:
    """As written 100 samples a second, and so many with a worker more each."""
    rows = [SweepRow(settings={}, outcome="measured", samples_per_s=100.0)]
    for count, rate in enumerate(rates, start=1):
        outcome: Any = "measured" if rate else "refused"
        row = SweepRow(
            settings={"num_workers": count},
            outcome=outcome,
            samples_per_s=rate,
            reason="" if rate else "no room",
        )
        rows.append(row)
    return LoaderSweep(rows=tuple(rows), best=best, reason=reason)


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


def ranks(*inputs_ms: float | None) -> tuple[RankUse, ...]:
    """Steps of 100 ms on each: who waits less for data waits for the others in the backward pass."""
    found = []
    for number, ms in enumerate(inputs_ms):
        parts = (
            (Share(part="input", ms=ms, share=0.0), Share(part="backward", ms=90 - ms, share=0.0))
            if ms
            else ()
        )
        found.append(RankUse(rank=number, pid=number, device="cpu", step_ms=100.0, updates=9, parts=parts))
    return tuple(found)


def kernel(name: str, ms: float, calls: float = 10.0, **more: Any) -> KernelUse:
    each = 1000 * ms / calls
    return KernelUse(name=name, kind="memory_bound", calls=calls, ms=ms, mean_us=each, share=0.5, **more)


def trace(*kernels: KernelUse, syncs: tuple[SyncPoint, ...] = (), on: float | None = None) -> TraceSummary:
    return TraceSummary(
        files=("a",),
        events=9,
        steps=3,
        step_ms=None,
        device_name="NVIDIA H200",
        busy_share=0.9,
        waterfall=(),
        kernels=kernels,
        operators=(),
        syncs=syncs,
        tensor_core_share=on,
        off_tensor_cores_share=None if on is None else 1 - on,
        kernels_per_step=9.0,
    )


def parts(**shares: float) -> tuple[Share, ...]:
    return tuple(Share(part=part, ms=100 * share, share=share) for part, share in shares.items())


def loader(**more: Any) -> dict[str, Any]:
    settings = {"num_workers": 4, "batch_size": 8, "persistent_workers": False, **more.pop("settings", {})}
    return {"loaders": (LoaderUse(data_set="Data", settings=settings, batches=9, wait_ms=5.0, **more),)}


def product(**more: Any) -> ProductShape:
    shape = {"operator": "aten::mm", "dtype": "bfloat16", "batch": 1, "m": 4096, "n": 50257, "k": 768}
    return ProductShape(**{**shape, "calls": 1, "share": 0.3, "pad": {"n": 50264}, **more})


def earlier(there: Seen, factor: float, **more: Any) -> Seen:
    """With a run before it that took so many times as long."""
    now = there.profile.step_ms
    assert now is not None
    before = dataclasses.replace(
        now, p50=factor * now.p50, low=factor * now.low, high=factor * now.high, mean=factor * now.mean
    )
    return dataclasses.replace(there, earlier=profile(run="before", step_ms=before, **more))


# In the profile's own step of 22.9 ms.
ITEM = SyncPoint(
    call="cudaStreamSynchronize",
    operator="aten::_local_scalar_dense",
    where="train.py:50 in main",
    count=1.0,
    host_ms=9.0,
    stall_ms=4.0,
)
BY_HAND = {
    "operators": ["aten._softmax", "aten.bmm"],
    "attention_shape": (4, 12, 1024, 1024, 64),
    "attention_calls": 12,
    "bytes_per_s": 4e12,
}
FUSED = {
    "operators": ["aten._scaled_dot_product_flash_attention"],
    "attention_ms": {"torch's choice": 1.0, "cudnn": 0.5},
    "attention_calls": 12,
}
LOSS = {"loss_bytes": 80e9, "bytes_per_s": 4e12}
STARTED = {"starts": 10, "start_ms": 200.0}
LINK = {"pcie_generation": 5, "pcie_width": 16, "pcie_generation_max": 5, "pcie_width_max": 16}
TINY = (kernel("elementwise", 2.0, calls=1000.0),)
PAGEABLE = kernel("Memcpy HtoD (Pageable -> Device)", 2.0)
LAUNCHING = {"busy_share": 0.5, "host_shares": {"forward": 0.4, "backward": 0.4, "optimizer": 0.1}}
# By code: what shows it, what just does not, and what knows too little.
CASES: dict[str, tuple[Seen, list[Seen], list[Seen]]] = {
    "F101": (
        seen(**waits(0.4)),
        [seen(**waits(0.04)), seen(**waits(0.4), loader_sweep=swept(102.0))],
        [seen(waterfall=())],
    ),
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
    "F104": (
        seen(**waits(0.4), **loader(workers_busy_share=0.95)),
        [
            seen(**waits(0.4), **loader(workers_busy_share=0.5)),
            seen(**waits(0.01), **loader(workers_busy_share=0.95)),
            seen(**waits(0.4), **loader(workers_busy_share=0.95, settings={"num_workers": 16})),
        ],
        [
            seen(**waits(0.4), **loader()),
            seen({"cores": None}, **waits(0.4), **loader(workers_busy_share=1.0)),
        ],
    ),
    "F105": (
        seen(**waits(0.4), **loader(load_ms=80.0)),
        [seen(**waits(0.4), **loader(load_ms=4.0)), seen(**waits(0.01), **loader(load_ms=80.0))],
        [seen(**waits(0.4), **loader()), seen(**waits(0.4), loaders=())],
    ),
    "F106": (
        seen(**loader(**STARTED)),
        [
            seen(**loader(starts=1, start_ms=200.0)),
            seen(**loader(starts=10, start_ms=1.0)),
            seen(**loader(**STARTED, settings={"persistent_workers": True})),
        ],
        [seen(**loader(**STARTED), step_ms=None), seen(loaders=())],
    ),
    "F107": (
        seen(trace=trace(PAGEABLE)),
        [
            seen(trace=trace(kernel("Memcpy HtoD (Pageable -> Device)", 0.1))),
            seen(trace=trace(kernel("Memcpy HtoD (Pinned -> Device)", 2.0))),
        ],
        [seen(), seen(trace=trace(PAGEABLE), step_ms=None)],
    ),
    "F204": (
        seen(trace=trace(syncs=(ITEM,)), waterfall=parts(sync_stall=0.17)),
        [seen(trace=trace(syncs=(ITEM,)), waterfall=parts(sync_stall=0.01))],
        [seen(waterfall=parts(sync_stall=0.17)), seen(trace=trace(syncs=(ITEM,)), waterfall=())],
    ),
    "F205": (
        seen(trace=trace(*TINY), waterfall=parts(launch_gap=0.5)),
        [
            seen(trace=trace(*TINY), waterfall=parts(launch_gap=0.05)),
            seen(trace=trace(kernel("elementwise", 2.0, calls=100.0)), waterfall=parts(launch_gap=0.5)),
            seen(trace=trace(kernel("gemm", 20.0, calls=1000.0)), waterfall=parts(launch_gap=0.5)),
        ],
        [seen(waterfall=parts(launch_gap=0.5)), seen(trace=trace(), waterfall=parts(launch_gap=0.5))],
    ),
    "F304": (
        seen({"autocast": "bf16"}, products=(product(),), waterfall=parts(matmul=0.6)),
        [
            seen({"autocast": "bf16"}, products=(product(pad={}),)),
            seen({"autocast": "bf16"}, products=(product(share=0.01),)),
            seen(products=(product(dtype="float32"),)),
        ],
        [seen(products=()), seen(job={"device": "cpu"}, products=(product(),))],
    ),
    "F305": (
        seen(BY_HAND, {"step_ms": 40.0}),
        [
            seen(
                {**BY_HAND, "operators": [*BY_HAND["operators"], "aten._scaled_dot_product_flash_attention"]}
            ),
            seen(BY_HAND, {"step_ms": 4000.0}),
        ],
        [
            seen({**BY_HAND, "attention_shape": ()}),
            seen({"operators": None, "attention_shape": (1, 1, 1, 1, 1)}),
        ],
    ),
    "F306": (
        seen(FUSED),
        [
            seen({**FUSED, "attention_ms": {"torch's choice": 0.5, "cudnn": 0.5}}),
            seen(FUSED, {"step_ms": 4000.0}),
            seen({**FUSED, "operators": ["aten._softmax"]}),
        ],
        [seen({**FUSED, "attention_ms": {}}), seen({**FUSED, "operators": None})],
    ),
    "F307": (
        seen(LOSS),
        [seen({**LOSS, "loss_bytes": 1e9}), seen({**LOSS, "compiles": True})],
        [seen({"loss_bytes": 80e9}), seen({"bytes_per_s": 4e12})],
    ),
    "F308": (
        seen(trace=trace(kernel("nchwToNhwcKernel", 2.0))),
        [seen(trace=trace(kernel("nchwToNhwcKernel", 0.1))), seen(trace=trace(kernel("transpose", 9.0)))],
        [seen(), seen(trace=trace(kernel("nchwToNhwcKernel", 2.0)), step_ms=None)],
    ),
    "F309": (
        seen(trace=trace(kernel("sgemm", 9.0, tensor_cores=False), on=0.1), waterfall=parts(matmul=0.8)),
        [
            seen(trace=trace(on=0.98), waterfall=parts(matmul=0.8)),
            seen(trace=trace(on=0.1), waterfall=parts(matmul=0.05)),
            seen(job={"capability": (6, 1)}, trace=trace(on=0.1), waterfall=parts(matmul=0.8)),
        ],
        [seen(trace=trace(on=None), waterfall=parts(matmul=0.8)), seen(waterfall=parts(matmul=0.8))],
    ),
    "F310": (
        seen(waterfall=parts(memory_bound=0.5)),
        [
            seen(waterfall=parts(memory_bound=0.2)),
            seen({"compiles": True}, waterfall=parts(memory_bound=0.5)),
        ],
        [seen(waterfall=())],
    ),
    "F403": (
        seen({"compiles": True, "graphs": 0}),
        [seen({"compiles": True, "graphs": 3}), seen({"compiles": False, "graphs": 0})],
        [seen({"compiles": True, "graphs": None})],
    ),
    "F504": (
        seen(memory=memory(0.6, allocated_peak_bytes=30 * GIB)),
        [seen(memory=memory(0.6, allocated_peak_bytes=50 * GIB))],
        [seen(memory=memory(0.6)), seen(memory=MemoryUse())],
    ),
    "F505": (
        seen(memory=memory(0.5, growth_bytes_per_step=float(1 << 20))),
        [
            seen(memory=memory(0.5, growth_bytes_per_step=100.0)),
            seen(memory=memory(0.5, growth_bytes_per_step=0.0)),
        ],
        [seen(memory=memory(0.5))],
    ),
    "F506": (seen({"gradients": "kept"}), [seen({"gradients": "zeroed"})], [seen(), seen({"gradients": ""})]),
    "F507": (
        seen({"gradients": "zeroed", "bytes_per_s": 4e12}, memory=memory(0.5, gradient_bytes=GIB)),
        [seen({"gradients": "none"}, memory=memory(0.5, gradient_bytes=GIB))],
        [seen({"gradients": "zeroed"}, memory=memory(0.5)), seen()],
    ),
    "F602": (
        seen(device_use=DeviceUse(samples=3, **{**LINK, "pcie_width": 8})),
        [seen(device_use=DeviceUse(samples=3, **LINK))],
        [seen(device_use=DeviceUse(samples=3, pcie_width=8)), seen(device_use=DeviceUse(samples=0))],
    ),
    "F702": (seen(waterfall=parts(communication=0.2)), [seen(waterfall=parts(communication=0.02))], [seen()]),
    "F801": (
        earlier(seen(), 0.8),
        [earlier(seen(), 0.98), earlier(seen(), 1.2), earlier(seen(), 0.8, device_name="another")],
        [seen(), dataclasses.replace(seen(), earlier=profile(step_ms=None))],
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
    "F202": (
        seen({"collector_share": 0.05}),
        [seen({"collector_share": 0.005}), seen({"collector_share": 0.05}, steps=5)],
        [seen()],
    ),
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
    "F401": (
        seen(compile=compiled(compiles_in_steady_state=4)),
        [seen(compile=compiled(compiles_in_steady_state=3))],
        [seen()],
    ),
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
        seen(ranks=ranks(10.0, 10.1, 18.0)),
        [seen(ranks=ranks(10.0, 12.0))],
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


def test_what_should_give_most_comes_first_and_a_rule_that_breaks_hides_no_other() -> None:
    def broken(_: Seen) -> None:
        raise KeyError("planted")

    found = findings_of(seen(**waits(0.9)), (*RULES, Rule("F999", "broken", broken)))
    gains = [finding.predicted_speedup or 1.0 for finding in found]
    assert gains == sorted(gains, reverse=True)
    assert found[0].code == "F101"
    assert "planted" in found[-1].evidence


def test_what_moves_numbers_is_named_by_its_kernels_and_not_by_products() -> None:
    product = dataclasses.replace(kernel("nvjet_sm90", 90.0), kind="matmul")
    moving = [
        kernel("void at::native::elementwise_kernel<128, 4>", 9.0),
        kernel("triton_poi_fused_add_0", 5.0),
    ]
    there = seen(waterfall=parts(memory_bound=0.5), trace=trace(product, *moving))
    finding = BY_CODE["F310"].look(there)
    assert finding is not None
    assert finding.evidence.endswith(
        "most of it in void at::native::elementwise_kernel, triton_poi_fused_add_0"
    )


def test_codes_are_unique() -> None:
    assert len(BY_CODE) == len(RULES)


def test_the_lines_that_wait_are_named() -> None:
    finding = BY_CODE["F204"].look(CASES["F204"][0])
    assert finding is not None
    assert [(place.file, place.line, place.function) for place in finding.where] == [("train.py", 50, "main")]


def test_lines_that_call_an_operator_come_with_the_busiest_first() -> None:
    lines = tuple(
        LineUse(operator=operator, file="model.py", line=line, function="forward", calls=calls)
        for operator, line, calls in (("aten::_softmax", 7, 1), ("aten::_softmax", 9, 5), ("aten::mm", 1, 99))
    )
    found = seen(BY_HAND, {"step_ms": 40.0}, lines=lines)
    finding = BY_CODE["F305"].look(found)
    assert finding is not None
    assert [place.line for place in finding.where] == [9, 7]


def test_attention_is_told_before_the_memory_that_it_moves() -> None:
    # Eight times by hand under autocast, as recorded on an H200: the softmaxes take 1.26 of 23.4 ms.
    softmax = OperatorUse(name="aten::_softmax", calls=8.0, ms=1.26, share=0.055)
    recorded = dataclasses.replace(trace(), operators=(softmax,))
    habits = {
        "operators": ["aten._softmax"],
        "attention_shape": (4, 16, 1024, 1024, 64),
        "attention_calls": 8,
    }
    found = findings_of(
        seen(
            {**habits, "autocast": "bf16"},
            {"step_ms": 23.4},
            trace=recorded,
            waterfall=parts(memory_bound=0.74, matmul=0.187),
        )
    )
    assert found[0].code == "F305"
    assert "F310" not in [one.code for one in found]


def test_what_harms_the_job_is_told_before_what_slows_it_down() -> None:
    found = findings_of(seen({"gradients": "kept"}, waterfall=parts(memory_bound=0.9)))
    assert found[0].code == "F506"
    assert "F310" in [one.code for one in found[1:]]


def test_what_has_grown_since_the_earlier_run_is_named() -> None:
    before = dataclasses.replace(profile().step_ms, p50=10.0, low=9.9, high=10.1, mean=10.0)  # type: ignore[type-var]
    slower = seen(waterfall=parts(matmul=0.05, launch_gap=0.1))
    there = dataclasses.replace(
        slower, earlier=profile(run="before", step_ms=before, waterfall=parts(matmul=0.05, launch_gap=0.01))
    )
    finding = BY_CODE["F801"].look(there)
    assert finding is not None
    assert "launch_gap (+9.00 ms)" in finding.evidence
    assert "before" in finding.evidence


def test_who_holds_what_grows_is_named_with_what_to_do() -> None:
    holder = MemoryHolder(
        name="losses[...]",
        kind="local",
        scope="train()",
        tensors=400,
        held_bytes=400 << 20,
        growth_bytes_per_step=float(1 << 20),
        keeps_graph=True,
        where=Place(file="/home/me/train.py", line=41, function="train"),
        adds=True,
        fix="use .item()",
    )
    grows = {
        "growth_bytes_per_step": float(1 << 20),
        "growth_low_bytes_per_step": float(900 << 10),
        "growth_high_bytes_per_step": float(1200 << 10),
    }
    finding = BY_CODE["F505"].look(seen(memory=memory(0.5, **grows, holders=(holder,))))
    assert finding is not None
    assert "1.00 MiB behind (900 KiB to 1.17 MiB)" in finding.evidence
    assert "losses[...] in train() holds 400 tensors, 400 MiB" in finding.evidence
    assert "added at train.py:41" in finding.evidence
    assert (finding.where, finding.fix) == ((holder.where,), "use .item()")


def test_where_the_loaders_settings_were_tried_the_best_of_them_is_told() -> None:
    found = BY_CODE["F101"].look(
        seen(**waits(0.2), loader_sweep=swept(130.0, 150.0, best={"num_workers": 2, "pin_memory": True}))
    )
    assert found is not None
    assert found.predicted_speedup == pytest.approx(1.5)
    assert found.arithmetic == "measured: 150 / 100 samples a second = 1.50"
    assert found.fix == "DataLoader(..., num_workers=2, pin_memory=True)"
    assert found.severity == "high"


def test_a_sweep_on_top_of_a_plan_is_held_against_the_plans_own_settings() -> None:
    def under_a_plan(*rates: float, best: dict[str, Any] | None) -> LoaderSweep:
        before, *others = swept(*rates, best=best).rows
        before = dataclasses.replace(before, settings={"num_workers": 2, "pin_memory": True})
        return LoaderSweep(rows=(before, *others), best=best, reason="tried")

    better = BY_CODE["F101"].look(
        seen(**waits(0.3), loader_sweep=under_a_plan(150.0, best={"num_workers": 4}))
    )
    assert better is not None
    assert better.predicted_speedup == pytest.approx(1.5)
    assert BY_CODE["F101"].look(seen(**waits(0.3), loader_sweep=under_a_plan(101.0, best=None))) is None


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        (swept(None, reason="no setting is faster"), "no room"),
        (LoaderSweep(rows=(), best=None, reason="the job has no pace"), "the job has no pace"),
    ],
)
def test_a_sweep_that_measured_nothing_leaves_the_finding_but_is_not_advised_again(
    sweep: LoaderSweep, why: str
) -> None:
    found = BY_CODE["F101"].look(seen(**waits(0.4), loader_sweep=sweep))
    assert found is not None
    assert why in found.fix
    assert "--loader" not in found.fix


def codes(there: Seen) -> list[str]:
    return [one.code for one in findings_of(there)]


def test_one_cause_is_one_finding() -> None:
    off = trace(kernel("sgemm", 9.0, tensor_cores=False), on=0.0)
    found = codes(seen(trace=off, waterfall=parts(matmul=0.8)))
    assert {"F301", "F302"} <= set(found)
    assert "F309" not in found
    # Where neither applies, kernels off tensor cores are told of by themselves.
    assert "F309" in codes(seen({"tf32": True, "autocast": "bf16"}, trace=off, waterfall=parts(matmul=0.8)))
    pageable = codes(seen(trace=trace(PAGEABLE), **copies(0.1)))
    assert "F107" in pageable
    assert "F103" not in pageable
    tiny = codes(seen(job=LAUNCHING, trace=trace(*TINY), waterfall=parts(launch_gap=0.5)))
    assert "F205" in tiny
    assert "F201" not in tiny


def test_what_products_give_follows_from_the_time_that_they_took() -> None:
    off = trace(kernel("sgemm", 9.0, tensor_cores=False), on=0.0)
    there = seen(trace=off, waterfall=parts(matmul=0.95))
    tf32, bf16 = BY_CODE["F301"].look(there), BY_CODE["F302"].look(there)
    assert tf32 is not None
    assert bf16 is not None
    assert tf32.predicted_speedup == pytest.approx(1 / (0.05 + 0.95 * 51 / (0.6 * 396)))
    assert bf16.predicted_speedup == pytest.approx(1 / (0.05 + 0.95 * 51 / (0.75 * 780)))
    # Half of them are on tensor cores already.
    half = seen(trace=trace(kernel("sgemm", 9.0), on=0.5), waterfall=parts(matmul=0.5))
    found = BY_CODE["F301"].look(half)
    assert found is not None
    assert found.predicted_speedup == pytest.approx(1 / (0.75 + 0.25 * 51 / (0.6 * 396)))


def test_launches_are_judged_by_the_gaps_between_kernels_where_they_were_recorded() -> None:
    habits = {"tf32": True, "autocast": "bf16"}
    recorded = trace(kernel("nvjet", 9.0))
    gaps = seen(
        habits, job={**LAUNCHING, "busy_share": 0.98}, trace=recorded, waterfall=parts(launch_gap=0.8)
    )
    assert "F201" in codes(gaps)
    waiting = parts(sync_stall=0.6, launch_gap=0.05)
    both = seen(
        habits, job={**LAUNCHING, "busy_share": 0.35}, trace=trace(kernel("nvjet", 9.0), syncs=(ITEM,))
    )
    found = codes(dataclasses.replace(both, profile=dataclasses.replace(both.profile, waterfall=waiting)))
    assert "F204" in found
    assert "F201" not in found


def test_a_larger_batch_that_takes_longer_is_not_slower() -> None:
    there = earlier(seen(samples_per_step=1024.0), 0.2, samples_per_step=64.0)
    assert BY_CODE["F801"].look(there) is None
    slower = BY_CODE["F801"].look(earlier(seen(samples_per_step=128.0), 0.2, samples_per_step=64.0))
    assert slower is not None
    assert slower.predicted_speedup == pytest.approx(2.5)
    assert "128 samples in place of 64" in slower.evidence


@pytest.mark.parametrize("unknown", [None, 0.0])
def test_where_samples_of_one_run_are_not_known_steps_are_compared_with_steps(unknown: float | None) -> None:
    assert BY_CODE["F801"].look(earlier(seen(samples_per_step=unknown), 1.0, samples_per_step=64.0)) is None
    hidden = BY_CODE["F801"].look(earlier(seen(samples_per_step=64.0), 0.5, samples_per_step=unknown))
    assert hidden is not None
    assert hidden.predicted_speedup == pytest.approx(2.0)
    assert "samples" not in hidden.evidence


def test_a_recording_that_lacks_kernels_is_not_reckoned_with() -> None:
    whole = trace(kernel("sgemm", 9.0, tensor_cores=False), on=0.0)
    lost = dataclasses.replace(whole, busy_share=None)
    without = BY_CODE["F302"].look(seen())
    found = BY_CODE["F302"].look(seen(trace=lost))
    assert without is not None
    assert found is not None
    assert found.predicted_speedup == without.predicted_speedup


def test_a_rule_that_breaks_silences_no_other() -> None:
    def broken(_: Seen) -> None:
        raise KeyError("planted")

    tiny = seen(job=LAUNCHING, trace=trace(*TINY), waterfall=parts(launch_gap=0.5))
    rules = [dataclasses.replace(one, look=broken) if one.code == "F205" else one for one in RULES]
    assert "F201" in {one.code for one in findings_of(tiny, rules)}


def test_the_share_that_is_reckoned_with_is_the_share_that_is_shown() -> None:
    found = BY_CODE["F101"].look(seen(**waits(0.99)))
    assert found is not None
    assert found.arithmetic.startswith("1 / (1 - 0.950 + 0.950 / 20)")


@pytest.mark.parametrize(
    ("reasons", "severity"),
    [
        (("thermal_software",), "high"),
        (("power_cap",), "low"),
        (("hardware_slowdown", "power_brake"), "medium"),
        (("power_brake",), "medium"),
    ],
)
def test_heat_and_brakes_are_something_to_look_after_and_a_power_cap_is_not(
    reasons: tuple[str, ...], severity: str
) -> None:
    found = BY_CODE["F601"].look(seen(device_use=DeviceUse(samples=9, throttle_reasons=reasons)))
    assert found is not None
    assert found.severity == severity
