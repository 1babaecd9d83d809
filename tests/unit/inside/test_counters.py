"""What a process holds, counted where it is handed out."""

import mmap
import os
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.counters import GpuMemory, MallocMemory, ResidentMemory, counter_for  # noqa: E402

MIB = 1 << 20


def test_on_the_host_what_the_c_library_has_given_out_is_counted_to_the_byte() -> None:
    counter = counter_for(torch, None)
    assert (counter.counted, counter.device) == ("malloc", "cpu")
    before = counter.read()
    kept = [torch.ones(256 << 10) for _ in range(8)]
    after = counter.read()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(8 * MIB, rel=0.01)
    del kept
    assert counter.read() == pytest.approx(before, abs=MIB // 4)


def test_without_it_the_process_is_asked() -> None:
    counter = ResidentMemory()
    before = counter.read()
    kept = mmap.mmap(-1, 64 * MIB)  # new pages: a tensor may lie in some that another has left
    kept.write(b"x" * (64 * MIB))
    after = counter.read()
    assert before is not None
    assert after is not None
    assert after - before > 48 * MIB
    counter.close()
    assert counter.read() == pytest.approx(after, abs=8 * MIB)
    kept.close()


def test_in_a_forked_child_it_is_the_childs_own() -> None:
    counter = ResidentMemory()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, str(counter._process != os.getpid() and counter.read()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(told, 100)) > MIB
    counter.close()


def test_an_allocator_that_the_c_library_knows_nothing_of_is_noticed() -> None:
    class Elsewhere:
        """Hands out what is there already."""

        uint8 = torch.uint8

        @staticmethod
        def empty(size: int, dtype: object, device: str) -> object:
            return torch.zeros(1, dtype=dtype, device=device).expand(size)

    with pytest.raises(OSError, match="another allocator"):
        MallocMemory(Elsewhere)


class Gpu:
    """As torch.cuda answers on a GPU."""

    @staticmethod
    def memory_stats_as_nested_dict(_device: int) -> dict[str, dict[str, dict[str, int]]]:
        return {
            "allocated_bytes": {"all": {"current": 6 * MIB}},
            "reserved_bytes": {"all": {"current": 20 * MIB}},
            "inactive_split_bytes": {"all": {"current": 4 * MIB}},
        }

    @staticmethod
    def memory_snapshot() -> list[dict[str, Any]]:
        mine = [{"size": 6 * MIB, "state": "active_allocated"}, {"size": 4 * MIB, "state": "inactive"}]
        others = [{"size": 64 * MIB, "state": "inactive"}]
        whole = [{"size": 10 * MIB, "state": "inactive"}]
        return [
            {"device": 1, "blocks": mine},
            {"device": 0, "blocks": others},
            {"device": 1, "blocks": whole},
        ]


def test_on_a_gpu_torchs_own_count_and_what_lies_in_pieces() -> None:
    counter = GpuMemory(types.SimpleNamespace(cuda=Gpu), 1)
    assert (counter.read(), counter.device, counter.counted) == (6 * MIB, "cuda:1", "allocated")
    about = {"reserved_bytes": 20 * MIB, "largest_free_bytes": 10 * MIB, "fragmented_share": 0.2}
    assert counter.about() == about
