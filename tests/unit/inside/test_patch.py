"""Patches put back exactly what they found, and leave alone what others put there since."""

from flatout.inside.tap import Patch


class Base:
    def method(self) -> str:
        return "base"


class Child(Base):
    pass


def test_an_own_attribute_is_put_back_as_the_same_object() -> None:
    found = Base.__dict__["method"]
    patch = Patch(Base, "method", lambda _self: "ours")
    assert Base().method() == "ours"
    patch.undo()
    assert Base.__dict__["method"] is found


def test_an_inherited_attribute_is_not_left_behind_as_an_own_one() -> None:
    patch = Patch(Child, "method", lambda _self: "ours")
    patch.undo()
    assert "method" not in Child.__dict__
    assert Child().method() == "base"


def test_what_someone_else_put_there_since_stays() -> None:
    patch = Patch(Child, "method", lambda _self: "ours")
    Child.method = lambda _self: "theirs"  # type: ignore[method-assign]
    patch.undo()
    assert Child().method() == "theirs"
    del Child.method


def test_undoing_twice_does_no_harm() -> None:
    patch = Patch(Base, "method", lambda _self: "ours")
    patch.undo()
    patch.undo()
    assert Base().method() == "base"
