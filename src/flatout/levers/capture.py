"""A call that TorchDynamo captures afresh."""

from typing import Any

from flatout.levers.lever import Call


def fresh(call: Call) -> Call:
    """A plain function around a call, with a code object of its own.

    TorchDynamo keeps what it compiled by code object, a few entries each: functions that share theirs would
    fill each other's places, and one arm would run what was compiled for another.
    """

    def inner(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    inner.__code__ = inner.__code__.replace()
    return inner
