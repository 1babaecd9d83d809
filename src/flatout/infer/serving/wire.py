"""Items from the bytes of a request, and answers as bytes: JSON, one .npy, safetensors, or bare numbers."""

import ast
import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from flatout.infer.serving.problems import Problem, bad
from flatout.infer.serving.specs import TensorSpec

JSON, NPY, SAFETENSORS, RAW = (
    "application/json",
    "application/x-npy",
    "application/x-safetensors",
    "application/octet-stream",
)
KINDS = (JSON, NPY, SAFETENSORS, RAW)
Item = dict[str, np.ndarray[Any, Any]]
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000


class Reader:
    """Reads requests for the inputs of one model."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        fields = [(spec.name, _nested(spec)) for spec in specs]
        inputs = msgspec.defstruct("Inputs", fields, forbid_unknown_fields=True)
        body = msgspec.defstruct("Body", [("inputs", inputs)], forbid_unknown_fields=True)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body)

    def read(self, kind: str, body: bytes, shape: str = "") -> Item:
        """One item, checked; raises Problem."""
        if kind == JSON:
            return self._from_json(body)
        if kind == SAFETENSORS:
            return self._checked(_from_safetensors(body))
        if len(self._specs) != 1:
            raise bad(f"{kind} for {len(self._specs)} inputs", f"{JSON} or {SAFETENSORS}, which name them")
        (spec,) = self._specs.values()
        array = _from_npy(body) if kind == NPY else _from_raw(body, spec, shape)
        return self._checked({spec.name: array})

    def _from_json(self, body: bytes) -> Item:
        try:
            inputs = self._decoder.decode(body).inputs
        except msgspec.ValidationError as error:
            raise bad(f"the JSON does not fit: {error}", self._expected()) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            said = str(error) or type(error).__name__
            raise bad(
                f"the body is not JSON: {said}", "UTF-8 JSON; it knows neither NaN nor Infinity"
            ) from None
        return self._checked(
            {name: self._array(spec, getattr(inputs, name)) for name, spec in self._specs.items()}
        )

    def _array(self, spec: TensorSpec, value: Any) -> np.ndarray[Any, Any]:
        try:
            if spec.largest_value is None:
                return np.array(value, dtype=spec.numpy_dtype)
            wide = np.array(value, dtype=np.float64)
        except (ValueError, OverflowError, TypeError) as error:
            # Rows of different lengths, or numbers that the type cannot hold.
            raise bad(f"{spec.name!r} is no tensor of {spec.dtype}: {error}", str(spec)) from None
        if wide.size and not np.abs(wide).max() <= spec.largest_value:
            raise bad(f"{spec.name!r} holds a number that {spec.dtype} cannot", "finite numbers in its range")
        return wide.astype(spec.numpy_dtype, copy=False)

    def _checked(self, item: Mapping[str, np.ndarray[Any, Any]]) -> Item:
        if set(item) != set(self._specs):
            raise bad(f"inputs named {', '.join(sorted(item)) or 'nothing'}", self._expected())
        for name, spec in self._specs.items():
            problem = spec.problem(item[name].shape)
            if problem:
                raise bad(problem, f"{spec} (without a batch dimension: one request is one item)")
            if item[name].dtype != spec.numpy_dtype:
                raise bad(f"{name!r} holds {item[name].dtype}", f"{spec.numpy_dtype}")
        return dict(item)

    def _expected(self) -> str:
        return '{"inputs": {...}} with ' + ", ".join(map(str, self._specs.values()))


def _nested(spec: TensorSpec) -> Any:
    """The type of its nested lists, so that a wrong value is told by its place."""
    kind: Any = bool if spec.dtype == "bool" else int if spec.numpy_dtype.kind in "iu" else float
    for _ in spec.shape:
        kind = list[kind]
    return kind


def _from_npy(body: bytes) -> np.ndarray[Any, Any]:
    """By hand: numpy's reader takes the memory that a header claims before it looks for the data."""
    try:
        if body[:6] != _MAGIC or body[6] not in (1, 2):
            raise ValueError("it does not begin as one does")
        wide = body[6] == 2
        (length,) = struct.unpack_from("<I" if wide else "<H", body, 8)
        start = 12 if wide else 10
        if length > _LONGEST_HEADER:
            raise ValueError("its header is too long")
        header = ast.literal_eval(body[start : start + length].decode("latin1"))
        dtype, shape = np.dtype(header["descr"]), tuple(header["shape"])
        if dtype.kind not in "fiub" or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"it holds {dtype} of shape {shape}")
        found = _numbers(memoryview(body)[start + length :], dtype, shape)
        return found.reshape(shape, order="F" if header["fortran_order"] else "C")
    except (
        ValueError,
        KeyError,
        TypeError,
        SyntaxError,
        IndexError,
        struct.error,
        MemoryError,
        RecursionError,
    ) as error:
        raise bad(f"the body is no .npy file: {error}", "what numpy.save writes, without objects") from None


def _numbers(data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = 1
    for size in shape:
        count *= size
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for {count} numbers of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype=dtype).astype(dtype.newbyteorder("="), copy=False)


def _from_raw(body: bytes, spec: TensorSpec, shape: str) -> np.ndarray[Any, Any]:
    words = [word.strip() for word in shape.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 12 for word in words):
        raise bad(f"x-shape: {shape[:80]!r}", "sizes with commas between them, such as 3,224,224")
    if spec.varies and not words:
        raise bad("bare numbers without a shape", f"a header x-shape beside them: {spec}")
    sizes = tuple(map(int, words)) if words else spec.largest
    problem = spec.problem(sizes)
    if problem:
        raise bad(problem, str(spec))
    try:
        return _numbers(memoryview(body), spec.numpy_dtype.newbyteorder("<"), sizes).reshape(sizes)
    except ValueError as error:
        raise bad(f"the body has {error}", f"{spec}, little-endian") from None


def _from_safetensors(body: bytes) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(body))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad(f"the body is no safetensors file: {error}", "what safetensors.save makes") from None


# Answers


def kind_of_answer(accept: str) -> str:
    """What the client likes best among what we have; raises Problem."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    if not wanted or any(one in ("*/*", "application/*", JSON) for one in wanted):
        return next((one for one in wanted if one in KINDS), JSON)
    found = next((one for one in wanted if one in KINDS), None)
    if found is None:
        raise Problem(
            406, f"accept: {accept[:200]!r}", expected=f"one of {', '.join(KINDS)}", remedy=f"accept: {JSON}"
        )
    return found


def answer(kind: str, outputs: Mapping[str, Any]) -> bytes:
    """The outputs of one item; values that JSON cannot hold are null, and said."""
    if kind == JSON:
        nulls: dict[str, str] = {}
        plain = {name: _plain(name, value, nulls) for name, value in outputs.items()}
        whole = {"outputs": plain, "nulls": nulls} if nulls else {"outputs": plain}
        try:
            return msgspec.json.encode(whole, enc_hook=_as_list)
        except (TypeError, ValueError, RecursionError) as error:
            raise Problem(
                500,
                f"the model's answer is nothing that JSON can hold: {error}",
                expected="numbers, texts, lists and dicts, tensors among them",
                remedy="let the model return such",
            ) from None
    arrays = {
        name: np.ascontiguousarray(value) for name, value in outputs.items() if isinstance(value, np.ndarray)
    }
    if len(arrays) != len(outputs) or (kind != SAFETENSORS and len(arrays) != 1):
        raise Problem(
            406,
            f"{kind} for the outputs {', '.join(outputs)}",
            expected="an answer of tensors alone, and of a single one but for safetensors",
            remedy=f"accept: {JSON}",
        )
    if kind == SAFETENSORS:
        from safetensors.numpy import save

        return bytes(save(arrays))
    (array,) = arrays.values()
    if kind == RAW:
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def _as_list(value: Any) -> Any:
    """Tensors and single numbers of numpy and torch, somewhere inside of an answer."""
    plain = getattr(value, "tolist", None)
    if plain is None or getattr(getattr(value, "dtype", None), "kind", "") == "c":
        raise TypeError(f"{type(value).__name__} is none of them")
    return plain()


def _plain(name: str, value: Any, nulls: dict[str, str]) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        count = int(np.size(value) - np.isfinite(value).sum())
        nulls[name] = f"{count} of {np.size(value)} are not a number or infinite"
        plain = value.astype(object)
        plain[~np.isfinite(value)] = None
        return plain.tolist()
    return value.tolist()
