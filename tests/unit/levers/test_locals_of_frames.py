"""Looking at a function that is under way leaves nothing behind that would keep what it lets go of."""

import sys
import weakref
from types import FrameType
from typing import Any

from flatout.levers.places import locals_of


class Thing:
    """Stands for a tensor."""


def look() -> dict[str, Any]:
    frame: FrameType | None = sys._getframe(1)
    assert frame is not None
    return locals_of(frame)


def test_what_a_function_lets_go_of_is_gone() -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    assert look()["thing"] is thing
    thing = Thing()
    assert gone() is None
    assert look()["thing"] is thing


def test_what_the_script_itself_asked_for_stays() -> None:
    thing = Thing()
    own = locals()
    assert look()["thing"] is thing
    assert own["thing"] is thing


def test_a_closure_keeps_its_variables() -> None:
    thing = Thing()

    def inner() -> tuple[Any, Any]:
        return look()["thing"], thing

    assert inner() == (thing, thing)
    assert thing is inner()[1]


def test_variables_of_a_module_stay() -> None:
    space: dict[str, Any] = {"look": look}
    exec("a = 1\nfound = look()\nb = a + 1", space)  # the frame's own dictionary is the module's
    assert space["found"]["a"] == 1
    assert space["b"] == 2
