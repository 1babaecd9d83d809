"""What a pickle of torch's would make, read from its opcodes: nothing is imported, nothing is called.

Every opcode is followed on values that stand for the real ones. Of all that a pickle can name, a handful
means something here (what torch writes for tensors and their containers); the rest becomes a `Holder`, in
which tensors are still found. Whoever reads a file may be reading an attack, so whatever it can make grow
is bounded, and only `Malformed` comes out.
"""

import dataclasses
import io
import pickletools
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

from flatout.memory.pickled_names import (
    DTYPE_GIVEN,
    GETATTR,
    ITEM_BYTES,
    MAPPINGS,
    OLD_MODULES,
    STORAGE_MODULES,
    STORAGES,
    SUBCLASS_CALL,
    TENSOR_CALLS,
    UNTYPED,
    WRAPPERS,
    is_allowed,
    is_hostile,
)

# Far more than the pickles of the largest models have; a file can make us look at no more.
MOST_OPCODES = 4_000_000
_MOST_DIMENSIONS = 64
_MOST_BYTES = 1 << 63
# Enough of the keys on the way to a tensor to say what it is for.
_KEYS_KEPT = 4
_LONGEST_KEY = 200


class Malformed(Exception):
    """Not a pickle that torch could load; what it named up to there is called all the same."""

    def __init__(self, problem: str, hostile: tuple[str, ...]) -> None:
        super().__init__(problem)
        self.hostile = hostile


@dataclasses.dataclass(frozen=True)
class Global:
    """Something that a pickle names, by its full name."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Storage:
    """A piece of memory in the file, by its key."""

    key: str
    # None where each tensor says it for itself.
    dtype: str | None
    size_bytes: int
    device: str


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A view of a storage."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many there are, by its shape."""
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclasses.dataclass(eq=False)
class Holder:
    """A container, or any object: what it holds, each under its key; None is no key of its own."""

    held: list[tuple[object, object]] = dataclasses.field(default_factory=list)
    maker: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pickled:
    """What a pickle holds."""

    value: object
    names: tuple[str, ...]
    hostile: tuple[str, ...]
    protocol: int
    # False where it has more opcodes than are looked at; then `value` is not known.
    is_whole: bool

    @property
    def unfamiliar(self) -> tuple[str, ...]:
        """What torch.load would not take with weights_only=True."""
        return tuple(name for name in self.names if not is_allowed(name))


def read_pickle(stream: io.BytesIO, *, most: int = MOST_OPCODES) -> Pickled:
    """Follow one pickle to its end, or as far as `most` opcodes go; raises Malformed."""
    following = _Following()
    try:
        with warnings.catch_warnings():
            # Of backslashes in names.
            warnings.simplefilter("ignore")
            for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
                if count == most:
                    return following.result(is_whole=False)
                following.step(opcode.name, argument)
    except (ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error) as error:
        raise Malformed(_words(error), following.result(is_whole=False).hostile) from error
    return following.result(is_whole=True)


def find_tensors(value: object) -> Iterator[tuple[tuple[str, ...], Tensor | Storage]]:
    """Every tensor and bare storage within a value, with the keys that lead to it, in order.

    What is held twice is seen once, so a value that holds itself has an end.
    """
    seen: set[int] = set()
    waiting: list[tuple[tuple[str, ...], object]] = [((), value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, Tensor | Storage):
            yield path, item
        elif isinstance(item, Holder | tuple) and id(item) not in seen:
            seen.add(id(item))
            held = item.held if isinstance(item, Holder) else list(enumerate(item))
            waiting += [(_longer(path, key), inner) for key, inner in reversed(held)]


def _longer(path: tuple[str, ...], key: object) -> tuple[str, ...]:
    if isinstance(key, str):
        word = key[:_LONGEST_KEY]
    elif isinstance(key, int) and key.bit_length() < 64:
        word = str(key)
    else:
        return path
    # The first keys say what it belongs to, the last what it is.
    return (*path[: _KEYS_KEPT - 1], word)


def _words(error: Exception) -> str:
    return str(error)[:_LONGEST_KEY] or type(error).__name__


class _Following:
    """The stack and memo of an unpickler, with stand-ins on them."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._below: list[list[object]] = []
        self._memo: dict[int, object] = {}
        self._names: dict[str, None] = {}
        self._hostile: dict[str, None] = {}
        self._protocol = 0
        self._value: object = None
        self._steps: dict[str, Callable[[object], None]] = {
            "PROTO": self._note_protocol,
            "FRAME": lambda _: None,
            "STOP": self._stop,
            "MARK": self._mark,
            "POP": self._drop,
            "POP_MARK": lambda _: self._discard(self._since_mark()),
            "DUP": lambda _: self._push(self._stack[-1]),
            "NONE": self._push,
            "NEWTRUE": lambda _: self._push(True),
            "NEWFALSE": lambda _: self._push(False),
            "EMPTY_TUPLE": lambda _: self._push(()),
            "TUPLE": lambda _: self._push(tuple(self._since_mark())),
            "TUPLE1": lambda _: self._push(tuple(self._last(1))),
            "TUPLE2": lambda _: self._push(tuple(self._last(2))),
            "TUPLE3": lambda _: self._push(tuple(self._last(3))),
            "EMPTY_LIST": lambda _: self._push(Holder()),
            "EMPTY_DICT": lambda _: self._push(Holder()),
            "EMPTY_SET": lambda _: self._push(Holder()),
            "LIST": lambda _: self._hold_in_order(Holder(), self._since_mark(), push=True),
            "FROZENSET": lambda _: self._hold_in_order(Holder(), self._since_mark(), push=True),
            "APPEND": lambda _: self._hold_in_order(*self._target(self._last(1))),
            "APPENDS": lambda _: self._hold_in_order(*self._target(self._since_mark())),
            "ADDITEMS": lambda _: self._hold_in_order(*self._target(self._since_mark())),
            "DICT": lambda _: self._hold_pairs(Holder(), self._since_mark(), push=True),
            "SETITEM": lambda _: self._hold_pairs(*self._target(self._last(2))),
            "SETITEMS": lambda _: self._hold_pairs(*self._target(self._since_mark())),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            "GLOBAL": self._global,
            "STACK_GLOBAL": self._stack_global,
            "REDUCE": self._reduce,
            "NEWOBJ": self._reduce,
            "NEWOBJ_EX": self._new_with_keywords,
            "INST": self._instance,
            "OBJ": self._object,
            "BUILD": self._build,
            "BINPERSID": self._persistent,
        }
        for name in ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"):
            self._steps[name] = self._push
        for name in ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"):
            self._steps[name] = self._push
        for name in ("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"):
            self._steps[name] = self._push
        for name in ("GET", "BINGET", "LONG_BINGET"):
            self._steps[name] = self._recall
        for name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._steps[name] = self._remember

    def step(self, opcode: str, argument: object) -> None:
        """Follow one opcode."""
        follow = self._steps.get(opcode)
        if follow is None:
            raise ValueError(f"the opcode {opcode}, which torch does not write")
        follow(argument)

    def result(self, *, is_whole: bool) -> Pickled:
        """What there is at the end, or so far."""
        return Pickled(
            value=self._value,
            names=tuple(self._names),
            hostile=tuple(self._hostile),
            protocol=self._protocol,
            is_whole=is_whole,
        )

    # The stack.

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _last(self, count: int) -> list[object]:
        if len(self._stack) < count:
            raise ValueError("takes more from the stack than is there")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _discard(self, items: list[object]) -> None:
        items.clear()

    def _drop(self, _: object) -> None:
        # Python's own unpickler lets POP take away a mark as well.
        if self._stack or not self._below:
            self._last(1)
        else:
            self._since_mark()

    def _mark(self, _: object) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[object]:
        if not self._below:
            raise ValueError("goes back to a mark that is not there")
        items, self._stack = self._stack, self._below.pop()
        return items

    def _stop(self, _: object) -> None:
        (self._value,) = self._last(1)

    def _note_protocol(self, number: object) -> None:
        self._protocol = number if isinstance(number, int) else 0

    # The memo.

    def _recall(self, key: object) -> None:
        if not isinstance(key, int) or key not in self._memo:
            raise ValueError("recalls what was never remembered")
        self._push(self._memo[key])

    def _remember(self, key: object) -> None:
        if not isinstance(key, int) or not self._stack:
            raise ValueError("remembers nothing")
        self._memo[key] = self._stack[-1]

    # Containers.

    def _target(self, items: list[object]) -> tuple[Holder, list[object]]:
        holder = self._stack[-1] if self._stack else None
        if not isinstance(holder, Holder):
            raise ValueError("puts something into what holds nothing")
        return holder, items

    def _hold_in_order(self, holder: Holder, items: list[object], *, push: bool = False) -> None:
        holder.held += enumerate(items, len(holder.held))
        if push:
            self._push(holder)

    def _hold_pairs(self, holder: Holder, items: list[object], *, push: bool = False) -> None:
        if len(items) % 2:
            raise ValueError("a key without a value")
        holder.held += zip(items[::2], items[1::2], strict=True)
        if push:
            self._push(holder)

    # What is named, and what is called.

    def _global(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._push(self._named(module, name))

    def _stack_global(self, _: object) -> None:
        module, name = self._last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("names something by what is no text")
        self._push(self._named(module, name))

    def _named(self, module: str, name: str) -> Global:
        return self._note_name(f"{OLD_MODULES.get(module, module)}.{name}")

    def _note_name(self, name: str) -> Global:
        self._names[name] = None
        if is_hostile(name):
            self._hostile[name] = None
        return Global(name)

    def _reduce(self, _: object) -> None:
        called, arguments = self._last(2)
        self._push(self._call(called, arguments))

    def _new_with_keywords(self, _: object) -> None:
        called, arguments, keywords = self._last(3)
        made = self._call(called, arguments)
        self._push(Holder([(None, made), (None, keywords)]))

    def _instance(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._push(self._call(self._named(module, name), tuple(self._since_mark())))

    def _object(self, _: object) -> None:
        called, *arguments = self._since_mark()
        self._push(self._call(called, tuple(arguments)))

    def _call(self, called: object, arguments: object) -> object:
        if not isinstance(arguments, tuple):
            raise ValueError("calls something with what are no arguments")
        if isinstance(called, Holder):
            # Tensors need no such thing; attacks do, to get from one object to another.
            self._hostile[f"a call of what {called.maker or 'a container'} gave"] = None
            return Holder([(None, arguments)])
        if not isinstance(called, Global):
            raise ValueError("calls what cannot be called")
        name = called.name
        if name in TENSOR_CALLS:
            return _tensor(name, arguments)
        if name in WRAPPERS and arguments:
            return Holder([(None, arguments[0]), (None, arguments[3:])], name)
        if name == SUBCLASS_CALL and len(arguments) == 4:
            return self._subclass(arguments)
        if name == GETATTR:
            return self._attribute(arguments)
        return Holder([(None, inner) for inner in arguments], "" if name in MAPPINGS else name)

    def _subclass(self, arguments: tuple[object, ...]) -> Holder:
        """A tensor of some class: how to make a plain one, the class, and what else it carries."""
        rebuild, _, inner, state = arguments
        if not isinstance(rebuild, Global) or rebuild.name == SUBCLASS_CALL:
            raise ValueError("a tensor that is made of nothing")
        return Holder([(None, self._call(rebuild, inner)), (None, state)], SUBCLASS_CALL)

    def _attribute(self, arguments: tuple[object, ...]) -> object:
        """`getattr` is how Python 3.11 pickles enums; what it leads to counts as named."""
        owner, name = arguments[0], arguments[1]
        if not isinstance(owner, Global) or not isinstance(name, str):
            self._hostile[GETATTR] = None
            return Holder([(None, arguments)], GETATTR)
        return self._note_name(f"{owner.name}.{name}"[:_LONGEST_KEY])

    def _build(self, _: object) -> None:
        (state,) = self._last(1)
        target = self._stack[-1] if self._stack else None
        if isinstance(target, Holder):
            target.held.append((None, state))
        elif isinstance(target, Global):
            self._hostile[f"a change to {target.name}"] = None
        elif isinstance(target, Tensor):
            self._stack[-1] = Holder([(None, target), (None, state)])
        else:
            raise ValueError("gives a state to what has none")

    def _persistent(self, _: object) -> None:
        (saved,) = self._last(1)
        self._push(_storage(saved))


def _storage(saved: object) -> object:
    """What stands in a pickle where a storage belongs: kind, key, device and elements."""
    if not isinstance(saved, tuple) or len(saved) < 2:
        raise ValueError("something outside of the pickle that is no storage")
    if saved[0] == "module":
        return saved[1]  # an old way to save a model's class, along with its source
    if saved[0] != "storage" or len(saved) < 5:
        raise ValueError("something outside of the pickle that is no storage")
    kind, key, device, elements = saved[1:5]
    if not isinstance(kind, Global) or not isinstance(key, str) or not isinstance(device, str):
        raise ValueError("a storage without a kind, a key or a device")
    module, _, name = kind.name.rpartition(".")
    dtype = STORAGES.get(name) if module in STORAGE_MODULES else None
    if dtype is None and kind.name != UNTYPED:
        raise ValueError(f"storage {key[:_LONGEST_KEY]!r} is of an unknown kind {kind.name[:_LONGEST_KEY]}")
    count = _length(elements, f"storage {key[:_LONGEST_KEY]!r}")
    return Storage(key, dtype, count * (ITEM_BYTES[dtype] if dtype else 1), device)


def _tensor(name: str, arguments: tuple[object, ...]) -> Tensor:
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    what = f"a tensor in storage {storage.key[:_LONGEST_KEY]!r}"
    dtype = storage.dtype
    if name == DTYPE_GIVEN:
        given = arguments[6]
        dtype = given.name.removeprefix("torch.") if isinstance(given, Global) else None
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{what} is of an unknown dtype")
    lengths, steps = _lengths(shape, what), _lengths(stride, what)
    if len(lengths) != len(steps):
        raise ValueError(f"{what} has {len(lengths)} dimensions and {len(steps)} strides")
    tensor = Tensor(storage, dtype, lengths, _length(offset, what), steps)
    reach = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True)) + 1
    if tensor.elements and (tensor.offset + reach) * ITEM_BYTES[dtype] > storage.size_bytes:
        raise ValueError(f"{what} reaches beyond its {storage.size_bytes} bytes")
    return tensor


def _lengths(value: object, what: str) -> tuple[int, ...]:
    # torch.Size is pickled as a call with the tuple in it.
    if isinstance(value, Holder) and value.maker == "torch.Size" and len(value.held) == 1:
        value = value.held[0][1]
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        _impossible(what)
    return tuple(_length(item, what) for item in value)


def _length(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_BYTES:
        _impossible(what)
    return value


def _impossible(what: str) -> NoReturn:
    raise ValueError(f"{what} has an impossible size")
