"""What is sent: from a file, or the example of the server's own /openapi.json."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import msgspec

from flatout.infer.bench.client import Client, request_bytes
from flatout.records.errors import CallerMistake, EnvironmentProblem

_KINDS = {
    ".json": "application/json",
    ".npy": "application/x-npy",
    ".safetensors": "application/x-safetensors",
}
_ASKING_S = 30.0
# A server that is still loading is waited for.
_WARMING_S, _LOOK_S = 120.0, 0.5


@dataclasses.dataclass(frozen=True)
class Payload:
    """A request that is sent again and again."""

    path: str
    request: bytes
    # In words, where it is from.
    source: str
    # Whether the answer is a stream of tokens.
    streams: bool


async def find_payload(url: SplitResult, file: Path | None, token: str) -> Payload:
    """Of the file, or of the server; raises CallerMistake or EnvironmentProblem."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    path = url.path if url.path not in ("", "/") else ""
    if url.query:
        path += f"?{url.query}"
    if file is None:
        path, body = await _of_server(url, path, headers)
        source, kind = "the example of its /openapi.json", "application/json"
    else:
        path, body, source = path or "/predict", _read(file), str(file)
        kind = _KINDS.get(file.suffix, "application/octet-stream")
    request = request_bytes(url, path, body, {"content-type": kind, **headers})
    return Payload(path, request, source, _streams(body) if kind == "application/json" else False)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CallerMistake(
            f"{file} cannot be read: {error.strerror}",
            expected="a file to send",
            remedy="--payload request.json",
        ) from error


async def _of_server(url: SplitResult, path: str, headers: dict[str, str]) -> tuple[str, bytes]:
    client, asking = Client(url, _ASKING_S), request_bytes(url, "/openapi.json", None, headers)
    try:
        until = time.monotonic() + _WARMING_S
        found = await client.send(asking)
        while found.status == 503 and time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
            found = await client.send(asking)
    finally:
        client.close()
    if found.error:
        raise EnvironmentProblem(
            f"{url.geturl()} does not answer: {found.error}",
            expected="a server there",
            remedy="flatout serve model:make",
        )
    examples = _examples(bytes(found.body)) if found.status == 200 else {}
    wanted = path or next(iter(examples), "")
    if wanted not in examples:
        raise CallerMistake(
            f"/openapi.json (status {found.status}) has no example for {wanted or 'any path'}",
            expected="an example there, or a payload of yours",
            remedy="flatout bench URL/path --payload request.json",
        )
    return wanted, msgspec.json.encode(examples[wanted])


def _examples(body: bytes) -> dict[str, Any]:
    try:
        paths = msgspec.json.decode(body)["paths"]
        kinds = {
            path: item["post"]["requestBody"]["content"] for path, item in paths.items() if "post" in item
        }
        return {
            path: kind["application/json"]["example"]
            for path, kind in kinds.items()
            if "example" in kind.get("application/json", {})
        }
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return {}


def _streams(body: bytes) -> bool:
    try:
        asked = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    return isinstance(asked, dict) and asked.get("stream") is True
