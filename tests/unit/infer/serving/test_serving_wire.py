"""Items from bytes, and answers as bytes."""

import io
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from flatout.infer.serving.problems import Problem
from flatout.infer.serving.specs import parsed
from flatout.infer.serving.wire import JSON, NPY, RAW, SAFETENSORS, Reader, answer, kind_of_answer
from flatout.records.errors import CallerMistake

IMAGE = Reader([parsed("x:float32[2,3]")])
TEXT = Reader([parsed("ids:int64[1-4]"), parsed("mask:bool[1-4]")])


def as_npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def refused(reader: Reader, kind: str, body: bytes, shape: str = "") -> str:
    with pytest.raises(Problem) as caught:
        reader.read(kind, body, shape)
    assert caught.value.status == 400
    return caught.value.received


def test_nested_lists_become_tensors_of_the_right_type() -> None:
    item = IMAGE.read(JSON, b'{"inputs": {"x": [[1, 2, 3], [4, 5, 6.5]]}}')
    assert item["x"].dtype == np.float32
    assert item["x"].tolist() == [[1, 2, 3], [4, 5, 6.5]]
    item = TEXT.read(JSON, b'{"inputs": {"ids": [7], "mask": [true]}}')
    assert item["ids"].tolist() == [7]
    assert item["mask"].dtype == bool


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"inputs": {"x": [[1, 2, NaN], [4, 5, 6]]}}', "not JSON"),
        (b'{"inputs": {"x": [[1, 2, Infinity], [4, 5, 6]]}}', "not JSON"),
        (b'{"inputs": {"x": [[1, 2, 1e400], [4, 5, 6]]}}', "JSON"),
        (b'{"inputs": {"x": [[1, 2, 1e39], [4, 5, 6]]}}', "holds a number that float32 cannot"),
        (b'{"inputs": {"x": [[1, 2, "3"], [4, 5, 6]]}}', "Expected `float`, got `str`"),
        (b'{"inputs": {"x": [[1, 2, null], [4, 5, 6]]}}', "Expected `float`, got `null`"),
        (b'{"inputs": {"x": [[1, 2], [4, 5, 6]]}}', "is no tensor of float32"),
        (b'{"inputs": {"x": [[1, 2, 3]]}}', "the shape of 'x' is [1,3]"),
        (b'{"inputs": {"x": []}}', "the shape of 'x' is [0]"),
        (b'{"inputs": {"y": [[1]]}}', "unknown field `y`"),
        (b'{"inputs": {}}', "missing required field `x`"),
        (b'{"inputs": {"x": [[1, 2, 3], [4, 5, 6]]}, "more": 1}', "unknown field `more`"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"inputs": {"x": ' + b"[" * 100_000, "JSON"),
        (b'{"inputs": {"x": "\xff\xfe"}}', "JSON"),
        (b"\xff\xfe\x00", "not JSON"),
    ],
)
def test_wrong_json_is_told_by_its_place(body: bytes, words: str) -> None:
    assert words in refused(IMAGE, JSON, body)


def test_integers_that_the_type_cannot_hold_are_refused() -> None:
    small = Reader([parsed("x:int8[1]")])
    assert "is no tensor of int8" in refused(small, JSON, b'{"inputs": {"x": [300]}}')
    assert "Expected `int`, got `float`" in refused(small, JSON, b'{"inputs": {"x": [1.5]}}')


def test_files_of_numpy_are_read_in_both_orders_and_byte_orders() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (array, np.asfortranarray(array), array.astype(">f4")):
        found = IMAGE.read(NPY, as_npy(given))["x"]
        assert found.dtype == np.float32
        assert np.array_equal(found, array)


def test_a_file_of_numpy_that_claims_more_than_it_holds_takes_no_memory() -> None:
    whole = as_npy(np.zeros((2, 3), np.float32)).replace(b"(2, 3)", b"(2**9,)"[:6])
    assert "no .npy file" in refused(IMAGE, NPY, whole)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 10000000), }"
    huge = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    assert "0 bytes for 10000000000000 numbers" in refused(IMAGE, NPY, huge)


def test_objects_in_a_file_of_numpy_are_never_unpickled() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "it holds object" in refused(IMAGE, NPY, stream.getvalue())


def test_safetensors_name_their_tensors() -> None:
    ids, mask = np.array([1, 2]), np.array([True, False])
    found = TEXT.read(SAFETENSORS, save({"ids": ids, "mask": mask}))
    assert found["ids"].tolist() == [1, 2]
    assert "holds float32" in refused(TEXT, SAFETENSORS, save({"ids": ids.astype(np.float32), "mask": mask}))
    assert "inputs named ids" in refused(TEXT, SAFETENSORS, save({"ids": ids}))
    assert "no safetensors file" in refused(TEXT, SAFETENSORS, b"\xff" * 100)
    assert "no safetensors file" in refused(TEXT, SAFETENSORS, b"")


def test_bare_numbers_need_a_shape_only_where_it_varies() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    assert np.array_equal(IMAGE.read(RAW, array.tobytes())["x"], array)
    assert "23 bytes for 6 numbers" in refused(IMAGE, RAW, array.tobytes()[:-1])
    assert "for 2 inputs" in refused(TEXT, RAW, b"")
    one = Reader([parsed("ids:int64[1-4]")])
    assert one.read(RAW, np.array([3, 4]).tobytes(), "2")["ids"].tolist() == [3, 4]
    assert "without a shape" in refused(one, RAW, b"12345678")
    assert "the shape of 'ids' is [9]" in refused(one, RAW, b"", "9")
    assert "x-shape" in refused(one, RAW, b"", "-1")


def test_answers_in_each_kind_hold_the_same_numbers() -> None:
    output = np.array([0.5, 1.5], np.float32)
    assert msgspec.json.decode(answer(JSON, {"output": output})) == {"outputs": {"output": [0.5, 1.5]}}
    assert np.load(io.BytesIO(answer(NPY, {"output": output}))).tolist() == [0.5, 1.5]
    assert load(answer(SAFETENSORS, {"output": output}))["output"].tolist() == [0.5, 1.5]
    assert np.frombuffer(answer(RAW, {"output": output}), "<f4").tolist() == [0.5, 1.5]


def test_what_json_cannot_hold_is_null_and_said() -> None:
    made = msgspec.json.decode(answer(JSON, {"output": np.array([1.0, np.nan, np.inf])}))
    assert made["outputs"]["output"] == [1.0, None, None]
    assert made["nulls"] == {"output": "2 of 3 are not a number or infinite"}


def test_the_kind_of_answer_follows_the_accept_header() -> None:
    assert kind_of_answer("") == kind_of_answer("*/*") == kind_of_answer("text/html, */*;q=0.1") == JSON
    assert kind_of_answer(f"{NPY}, */*") == NPY
    with pytest.raises(Problem) as caught:
        kind_of_answer("text/html")
    assert caught.value.status == 406
    with pytest.raises(Problem):
        answer(NPY, {"a": np.zeros(1), "b": np.zeros(1)})


@pytest.mark.parametrize(
    "words", ["x", "x:float32", "x:float32[0]", "x:float32[3-1]", "x:float32[-1]", "3:int8[1]", "x:int8[1"]
)
def test_words_that_describe_no_tensor_are_refused(words: str) -> None:
    with pytest.raises(CallerMistake):
        parsed(words)
    with pytest.raises(CallerMistake):
        parsed("x:floot32[3]")


def test_tensors_and_numbers_inside_of_an_answer_are_plain_json() -> None:
    found = answer(JSON, {"output": [{"score": np.float32(0.5), "box": torch.tensor([1, 2])}]})
    assert found == b'{"outputs":{"output":[{"score":0.5,"box":[1,2]}]}}'


@pytest.mark.parametrize("made", [object(), {1 + 2j}, np.array([1j])])
def test_an_answer_that_json_cannot_hold_is_told_as_the_model_s(made: Any) -> None:
    with pytest.raises(Problem, match="nothing that JSON can hold") as caught:
        answer(JSON, {"output": [made]})
    assert caught.value.status == 500
