"""Threads, attention kernels, allocator settings: changed as they say, put back as found, refused rightly."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.levers.allocator import Allocator  # noqa: E402
from flatout.levers.cpu_threads import CpuThreads  # noqa: E402
from flatout.levers.job import JobFacts  # noqa: E402
from flatout.levers.lever import Refused  # noqa: E402
from flatout.levers.sdpa_backend import SdpaBackend  # noqa: E402
from flatout.levers.tf32 import Tf32  # noqa: E402

SCENE: Any = SimpleNamespace(torch=torch, device=torch.device("cpu"))
GPU = {"device": "cuda:0", "device_shares": {"forward": 0.3, "backward": 0.6}}


def test_tf32_leaves_the_switches_as_it_found_them() -> None:
    def state() -> tuple[Any, ...]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        # The compiler's cache tells "none" from "ieee".
        return matmul.allow_tf32, getattr(matmul, "fp32_precision", None), cudnn.allow_tf32

    before = state()
    lever = Tf32(SimpleNamespace(torch=torch, device=torch.device("cuda")), {})  # type: ignore[arg-type]
    lever.apply()
    assert state()[0] is True
    lever.undo()
    assert state() == before


def test_threads_are_set_and_put_back() -> None:
    before = torch.get_num_threads()
    lever = CpuThreads(SCENE, {"threads": before + 1})
    lever.apply()
    assert torch.get_num_threads() == before + 1
    lever.undo()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("habits", "tried"),
    [
        ({"threads": 8, "cores": 8}, [1, 4]),
        ({"threads": 8, "cores": 16}, [1, 4, 16]),
        ({"threads": 1, "cores": 2}, [2]),
        ({"threads": 1, "cores": 1}, []),
    ],
)
def test_one_half_and_all_are_tried(habits: dict[str, Any], tried: list[int]) -> None:
    job = JobFacts(habits=habits)
    assert [settings["threads"] for settings in CpuThreads.variants(job)] == tried
    assert bool(CpuThreads.check(job)) == (not tried)


def test_a_scripts_own_number_of_threads_stays() -> None:
    job = JobFacts(habits={"threads": 8, "cores": 8, "sets_threads": True})
    assert "chosen already" in CpuThreads.check(job)
    assert "GPU" in CpuThreads.check(JobFacts(device="cuda:0", habits={"threads": 8, "cores": 8}))


@pytest.mark.parametrize("first", ["cudnn", "flash"])
def test_an_attention_kernel_comes_first_and_goes_without_a_trace(first: str) -> None:
    def state() -> tuple[Any, ...]:
        cuda = torch.backends.cuda
        return (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            tuple(torch._C._get_sdp_priority_order()),
        )

    before = state()
    lever = SdpaBackend(SCENE, {"first": first})
    lever.apply()
    wanted = {"cudnn": torch.nn.attention.SDPBackend.CUDNN_ATTENTION}.get(
        first, torch.nn.attention.SDPBackend.FLASH_ATTENTION
    )
    assert state()[4][0] == int(wanted)
    assert all(state()[:4])
    lever.undo()
    assert state() == before


def test_an_attention_kernel_needs_attention_on_a_gpu() -> None:
    times = {"torch's choice": 0.4, "cudnn": 0.3, "flash": 0.4}
    with_attention = {"operators": ["aten._scaled_dot_product_flash_attention"], "attention_ms": times}
    assert not SdpaBackend.check(JobFacts(habits=with_attention, **GPU))  # type: ignore[arg-type]
    by_hand = {"operators": ["aten._softmax"], "attention_ms": times}
    assert not SdpaBackend.check(JobFacts(habits=by_hand, **GPU))  # type: ignore[arg-type]
    assert "no attention" in SdpaBackend.check(JobFacts(habits={"operators": ["aten.mm"]}, **GPU))  # type: ignore[arg-type]
    assert "GPU" in SdpaBackend.check(JobFacts(habits=with_attention))
    not_timed = {"operators": ["aten._softmax"]}
    assert "timed" in SdpaBackend.check(JobFacts(habits=not_timed, **GPU))  # type: ignore[arg-type]
    chosen = with_attention | {"sdpa_kernel": True}
    assert "itself" in SdpaBackend.check(JobFacts(habits=chosen, **GPU))  # type: ignore[arg-type]


def test_only_the_attention_kernel_that_was_timed_to_be_faster_is_tried() -> None:
    def variants(times: dict[str, float]) -> Any:
        habits = {"operators": ["aten._softmax"], "attention_ms": times, "attention_calls": 12}
        job = JobFacts(habits=habits, step_ms=12.0, **GPU)  # type: ignore[arg-type]
        settings = SdpaBackend.variants(job)
        return settings, SdpaBackend.check(job), [SdpaBackend.predict(job, one) for one in settings]

    settings, reason, [predicted] = variants({"torch's choice": 0.4, "cudnn": 0.4, "flash": 0.2})
    assert settings == ({"first": "flash"},)
    assert not reason
    assert predicted == pytest.approx(1.25)
    settings, reason, _ = variants({"torch's choice": 0.300, "cudnn": 0.297, "flash": 0.4})
    assert not settings
    assert reason == "torch's own choice is the fastest for this shape: 0.300 ms"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_the_environment_configures_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:128")
    scene: Any = SimpleNamespace(torch=None)
    with pytest.raises(Refused, match="max_split_size_mb:128"):
        Allocator(scene, {}).apply()


def test_the_allocator_is_left_alone_unless_it_starts_over() -> None:
    assert "never" in Allocator.check(JobFacts(habits={"allocation_retries": 0}, **GPU))  # type: ignore[arg-type]
    assert not Allocator.check(JobFacts(habits={"allocation_retries": 3}, **GPU))  # type: ignore[arg-type]
    configured = {"allocation_retries": 3, "allocator_settings": "max_split_size_mb:128"}
    assert "configures" in Allocator.check(JobFacts(habits=configured, **GPU))  # type: ignore[arg-type]
    assert "GPU" in Allocator.check(JobFacts(habits={"allocation_retries": 3}))
