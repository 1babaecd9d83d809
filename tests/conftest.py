"""What holds for every test."""

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure, and what passed yesterday passes today. `--hypothesis-profile=default` draws
# other examples than the usual ones.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_configure() -> None:
    """Under `nohup` or in a background job children would ignore the signals that tests send in earnest."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tensors here are small, and each core has tests of its own: threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# What takes longest. At the end of a run, nobody should wait for one that has only begun.
_FIRST = ("test_tune", "test_parallel", "test_microbatching_ranks", "test_optimize", "test_zoo", "test_serve")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; the others as they stand."""
    items.sort(key=lambda item: not item.path.name.startswith(_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: for a quarter of its time a test waits, for a deadline or for a child."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + max(1, cores // 4)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What others have loaded is set apart: else each of the many collections in tests looks at all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def whole_heap(small_heap: None) -> Iterator[None]:
    """For tests of who holds what: `gc` shows nothing that is set apart."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test draws the same random numbers whichever tests came before it."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
