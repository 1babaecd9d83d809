"""What lessons measure with: limits that are kept already are taken as they are."""

import msgspec

from flatout.learn.bench import Bench, BenchOrder
from flatout.records.limits import Measured

KEPT = Measured(
    matmul_flops_per_s={"bf16": 797e12},
    memory_bytes_per_s=4.3e12,
    launch_s=6.6e-6,
    item_s=1.2e-5,
    graph_node_s=1.1e-6,
    unknown={"matmul_flops_per_s.fp8": "no tensor cores for fp8"},
)


def test_kept_limits_reach_the_child_and_are_not_measured_again() -> None:
    said: list[str] = []
    order = BenchOrder(lessons=("launch",), device="cuda:0", known=KEPT, scratch="/nowhere")
    bench = Bench(msgspec.json.decode(msgspec.json.encode(order), type=BenchOrder), said.append)
    assert bench.memory_bytes_per_s == 4.3e12
    assert bench.matmul_rate("bf16") == 797e12
    assert bench.matmul_rate("fp8") == "no tensor cores for fp8"
    assert (bench.launch_s, bench.item_s, bench.graph_node_s) == (6.6e-6, 1.2e-5, 1.1e-6)
    assert said == [], "nothing was measured, and torch was not imported"


def test_there_are_no_recorded_graphs_without_cuda() -> None:
    order = BenchOrder(lessons=("launch",), device="cpu", known=KEPT, scratch="/nowhere")
    assert Bench(order, lambda _words: None).graph_node_s is None
