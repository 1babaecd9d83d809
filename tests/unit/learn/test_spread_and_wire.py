"""Traffic: what arithmetic says about strategies, and what the kernel counts on a real connection."""

import socket
import sys
import threading

import pytest

from flatout.learn.spread import Shape, compute_seconds, moved, shape_of
from flatout.learn.wire import can_count, sent_by, sent_bytes


def test_strategies_send_what_rings_send() -> None:
    shape = Shape(parameters=1000, width=10, layers=4, tokens=50, bytes_a_number=4)
    sent = {one.strategy: one.sent_bytes for one in moved(shape, 4)}
    assert sent["ddp"] == pytest.approx(2 * 3 / 4 * 4000)
    assert sent["fsdp"] == pytest.approx(3 * 3 / 4 * 4000)
    assert sent["tensor"] == pytest.approx(2 * 3 / 4 * 4 * 4 * 50 * 10 * 4)
    assert sent["pipeline"] == pytest.approx(2 * 3 / 4 * 50 * 10 * 4)


def test_only_ddp_holds_everything() -> None:
    held = {one.strategy: one.held_bytes for one in moved(shape_of(1e9, 1000), 8)}
    assert held["ddp"] == 16e9
    assert held["fsdp"] == held["tensor"] == held["pipeline"] == 2e9


def test_a_model_is_as_wide_and_deep_as_such_models_are() -> None:
    shape = shape_of(6.44e9, 1)
    assert shape.width == pytest.approx(4096, rel=0.01)
    assert shape.layers == pytest.approx(32, rel=0.01)
    assert compute_seconds(shape_of(1e9, 1000), 2, 1e12) == pytest.approx(3.0)


@pytest.mark.skipif(not can_count(), reason=f"{sys.platform} does not count what a connection sends")
def test_what_a_connection_sends_is_counted_and_the_connection_lives_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        received: list[int] = []

        def read() -> None:
            other, _ = server.accept()
            with other:
                while data := other.recv(1 << 16):
                    received.append(len(data))

        reader = threading.Thread(target=read)
        reader.start()
        with socket.create_connection(server.getsockname()) as ours:
            ours.sendall(b"x")
            before = sent_by(ours)
            ours.sendall(b"x" * 300_000)
            ours.shutdown(socket.SHUT_WR)
            reader.join()
            assert sent_by(ours) - before == 300_000
            # Other tests' connections may be open in this process, too.
            assert sent_bytes() >= sent_by(ours)
    assert sum(received) == 300_001
