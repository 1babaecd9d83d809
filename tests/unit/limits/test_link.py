"""The link between ranks: real processes over gloo, and ranks that die, hang, fail or hide."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.hardware.cpu import CpuSource
from flatout.limits.collective import best_of_large, bus_rate
from flatout.limits.link import Deadlines, measure_link
from flatout.limits.link_figures import LinkFigures
from flatout.limits.peers import Peers, choose_peers
from flatout.limits.ranks import reason_of
from flatout.records.codec import decode
from flatout.records.link import AllReduceRate, PairRate, RanksLink, judged
from tests.fakes.processes import wait_until_gone

SHORT = Deadlines(quiet_s=5.0, whole_s=100.0)


def two_processes(**environment: str) -> Peers:
    devices = CpuSource().discover().devices
    peers = choose_peers(devices[0], devices, 2, {})
    assert isinstance(peers, Peers)
    return dataclasses.replace(peers, environment={**peers.environment, **environment})


def sabotage(tmp_path: Path, body: str) -> Peers:
    """Ranks that write their PIDs down; `body` runs in the second, before anything else."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        f"open({str(tmp_path)!r} + '/pid-' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        f"if os.environ['RANK'] == '1':\n    {body}\n"
    )
    return two_processes(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def in_mid_sum(what: str) -> str:
    """Does `what` as the rank reports that it begins the second size of sums."""
    return (
        "write = os.write\n"
        "    def late(pipe, data):\n"
        "        sent = write(pipe, data)\n"
        f"        if b'sums of 1 MiB' in data: {what}\n"
        "        return sent\n"
        "    os.write = late"
    )


def all_gone(tmp_path: Path) -> bool:
    return all(wait_until_gone(int(path.read_text())) for path in tmp_path.glob("pid-*"))


@pytest.mark.timeout(600)
def test_two_processes_are_measured_with_sums_by_size_and_copies_both_ways() -> None:
    stages: list[str] = []
    link = measure_link(two_processes(), on_stage=lambda name, *_: stages.append(name))
    assert link.unknown == {}
    assert (link.backend, link.ranks, link.nodes) == ("gloo", 2, 1)
    assert link.bus_bytes_per_s is not None
    assert 1e6 < link.bus_bytes_per_s < 1e12
    assert link.small_s is not None
    assert 1e-7 < link.small_s < 10
    for size in link.sizes:
        # With two ranks, each sends as much as the sum has.
        assert size.bus_bytes_per_s == pytest.approx(size.message_bytes / size.seconds)
    assert [(pair.source, pair.target) for pair in link.pairs] == [(0, 1), (1, 0)]
    assert stages[:3] == ["link: import torch", "link: ranks meet", "link: a sum that must be right"]
    assert stages[-1] == "link: copies from rank 1 to 0"


def test_a_rank_that_dies_is_named_with_its_signal_and_nobody_is_left(tmp_path: Path) -> None:
    link = measure_link(sabotage(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)"), deadlines=SHORT)
    assert link.bus_bytes_per_s is None
    assert "rank 1 (process 1) died of signal 9 at 'its start'" in link.unknown["bus_bytes_per_s"]
    assert all_gone(tmp_path)


@pytest.mark.full
def test_a_rank_that_ends_by_itself_is_told_with_its_last_line(tmp_path: Path) -> None:
    link = measure_link(
        sabotage(tmp_path, "sys.stderr.write('no such device\\n'); sys.stderr.flush(); os._exit(3)"),
        deadlines=SHORT,
    )
    assert "rank 1 (process 1) failed at 'its start': no such device" in link.unknown["bus_bytes_per_s"]


def test_a_rank_that_hangs_is_the_one_that_is_named_and_nobody_is_left(tmp_path: Path) -> None:
    link = measure_link(sabotage(tmp_path, "time.sleep(600)"), deadlines=SHORT)
    assert link.unknown["bus_bytes_per_s"].startswith("rank 1 (process 1) came no further than 'its start'")
    assert all_gone(tmp_path)


def test_an_interrupt_ends_all_ranks(tmp_path: Path) -> None:
    def interrupt(*_stage: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_link(sabotage(tmp_path, "pass"), on_stage=interrupt)
    assert all_gone(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 (process 1) died of signal 9 at 'sums of 1 MiB'"),
        (
            "raise MemoryError('no more')",
            "rank 1 (process 1) failed at 'sums of 1 MiB': MemoryError: no more",
        ),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "'sums of 1 MiB' within 8 s"),
    ],
)
def test_what_was_measured_before_a_rank_failed_in_mid_sum_stays(
    tmp_path: Path, what: str, told: str
) -> None:
    peers = sabotage(tmp_path, in_mid_sum(what))
    link = measure_link(peers, deadlines=Deadlines(quiet_s=8.0, whole_s=120.0))
    assert link.small_s is not None
    assert [size.message_bytes for size in link.sizes] == [64 << 10]
    assert link.bus_bytes_per_s is None
    assert told in link.unknown["bus_bytes_per_s"]
    assert told in link.unknown["pair_median_bytes_per_s"]
    assert all_gone(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_torchrun_starts_the_ranks_too_and_the_first_prints_the_document(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "flatout.limits.ranks"),
        ],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    link = decode(done.stdout, tmp_path, "link", 1, RanksLink, remedy="")
    assert link.bus_bytes_per_s is not None
    assert (link.ranks, len(link.pairs)) == (2, 2)
    assert link.members[1].endswith("process 1")


# --- what the figures mean -----------------------------------------------------------------------------


def test_the_bus_rate_is_what_each_rank_sends() -> None:
    assert bus_rate(1000, 1.0, 2) == 1000
    assert bus_rate(1000, 1.0, 8) == 1750


def test_the_best_rate_is_one_of_a_large_sum() -> None:
    def rate(size: int, bus: float) -> AllReduceRate:
        return AllReduceRate(message_bytes=size, seconds=1.0, bus_bytes_per_s=bus, spread_share=0.0)

    # The small one fits into a cache and is no gradient's.
    sizes = (rate(1 << 20, 90.0), rate(128 << 20, 50.0), rate(512 << 20, 60.0), rate(1 << 30, 55.0))
    assert best_of_large(sizes) == 60.0
    assert best_of_large(()) is None


def test_one_slow_link_is_told_from_links_that_differ_a_little() -> None:
    pairs = [
        PairRate(source=a, target=b, bytes_per_s=100.0 + a - b) for a in range(4) for b in range(4) if a != b
    ]
    assert judged(pairs)[1] == ()
    slow = PairRate(source=1, target=3, bytes_per_s=40.0)
    middle, found = judged([slow if (pair.source, pair.target) == (1, 3) else pair for pair in pairs])
    assert found == (slow,)
    assert middle == pytest.approx(100.0, abs=2)


def test_two_ways_of_one_pair_are_not_judged_by_each_other() -> None:
    pairs = [PairRate(source=0, target=1, bytes_per_s=10.0), PairRate(source=1, target=0, bytes_per_s=90.0)]
    assert judged(pairs) == (50.0, ())


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="not above zero"):
        RanksLink(backend="gloo", ranks=2, members=("a", "b"), bus_bytes_per_s=0.0, took_s=1.0)


def test_what_is_left_out_for_many_ranks_keeps_its_reason() -> None:
    figures = LinkFigures()
    figures.take({"event": "lacking", "field": "pairs.others", "reason": "neighbours alone"})
    link = figures.link(backend="nccl", members=("a", "b"), settings=(), took_s=1.0)
    assert link.unknown["pairs.others"] == "neighbours alone"


def test_processes_that_cannot_be_started_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    link = measure_link(two_processes())
    assert "could not be started" in link.unknown["bus_bytes_per_s"]


def test_what_nccl_says_last_is_told_too() -> None:
    error = RuntimeError(
        "NCCL error in: NCCLUtils.hpp:77\nunhandled system error\nLast error:\nno shared memory"
    )
    assert reason_of(error) == "RuntimeError: NCCL error in: NCCLUtils.hpp:77 (no shared memory)"
    assert reason_of(ValueError("one\ntwo")) == "ValueError: one"
