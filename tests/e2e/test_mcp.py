"""`flatout mcp` with the SDK's own client: answers, progress, refusals, and what is left when it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.agents import is_training, others, server_in, server_pid, wait_until
from tests.e2e.jobs import ENDLESS, QUICK, Place, place_in, processes_with

READERS = [
    *("doctor", "limits", "check", "profile", "trace", "tune", "fit", "batch", "report", "ps", "watch"),
    *("explain", "cost", "gpus", "power", "stop"),
]
HOSTILE = "; touch pwned; $(touch pwned) `touch pwned` | touch pwned\n&& touch pwned"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def error_of(result: Any) -> dict[str, str]:
    assert result.is_error, result.content
    assert result.structured_content["schema"] == "flatout.error/1"
    return result.structured_content["error"]  # type: ignore[no-any-return]


def test_a_small_job_is_profiled_with_progress_and_hostile_words_reach_the_script_as_they_are(
    place: Place,
) -> None:
    name = place.script(
        "import json, sys\nprint(json.dumps(sys.argv[1:]))\n" + ENDLESS, "a $(touch pwned);.py"
    )
    heard: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, _total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def talk() -> Any:
        async with server_in(place) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == READERS
            assert all(tool.output_schema and tool.description for tool in tools)
            arguments = {"script": name, "arguments": [HOSTILE, "--json", "-q"], "steps": 12}
            result = await client.call_tool(
                "profile",
                {**arguments, "no_trace": True, "no_limits": True},
                progress_callback=on_progress,
            )
            maps = Path(f"/proc/{server_pid(place)}/maps").read_text()
            return result, maps

    result, maps = anyio.run(talk)
    assert not result.is_error, result.content
    assert result.structured_content["schema"] == "flatout.profile/1"
    assert result.structured_content["updates"] == 12
    assert json.loads(result.content[0].text) == result.structured_content
    assert json.loads(place.said().splitlines()[0]) == [HOSTILE, "--json", "-q"]
    assert "libtorch" not in maps
    assert heard == sorted(set(heard))
    assert any(message and message.startswith("profile") for _, message in heard)
    assert not [path for path in place.work.rglob("pwned") if path.is_file()]
    assert processes_with(place.token) == {}


def test_what_is_not_allowed_is_refused_in_three_parts_and_the_server_goes_on(place: Place) -> None:
    (place.work / "train.py").write_text("raise SystemExit('it ran')")
    (place.other / "outside.py").write_text("raise SystemExit('it ran')")
    (place.work / "-x.py").write_text("raise SystemExit('it ran')")
    (place.work / "link.py").symlink_to(place.other / "outside.py")
    (place.work / "out").symlink_to(place.other)
    (place.work / "ls").write_text("not the program of that name")
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("run", {"script": "train.py"}, "--allow run"),
        ("stop", {"jobs": ["train.py"]}, "--allow stop"),
        ("stop", {"jobs": ["train.py"], "dry_run": False}, "--allow stop"),
        ("power", {"job": "train.py", "apply": True}, "--allow power"),
        ("power", {"job": "train.py"}, "--allow power"),
        ("power", {"restore": True}, "--allow power"),
        ("tune", {"script": "train.py", "plan": "flatout.toml"}, "--allow plan"),
        ("skills_install", {"to": "skills"}, "--allow skills"),
        ("profile", {"script": "../train.py"}, "inside of"),
        ("profile", {"script": str(place.other / "outside.py")}, "inside of"),
        ("profile", {"script": "link.py"}, "inside of"),
        ("profile", {"script": "out/outside.py"}, "inside of"),
        ("profile", {"script": "-x.py"}, "inside of"),
        ("profile", {"script": "ls"}, "inside of"),
        ("profile", {"script": "train.py\0"}, "maxLength"),
        ("profile", {"module": "http.server"}, "inside of"),
        ("profile", {"module": "..train"}, "inside of"),
        ("profile", {"script": "train.py", "module": "train"}, "one of them"),
        ("profile", {}, "a script"),
        ("profile", {"script": ["train.py"]}, "string"),
        ("profile", {"script": "train.py", "steps": "12"}, "integer"),
        ("profile", {"script": "train.py", "python": "/bin/sh"}, "one of"),
        ("trace", {"files": ["/etc/passwd"]}, "inside of"),
        ("report", {"run": "out"}, "inside of"),
        ("report", {"folder": "/"}, "inside of"),
        ("tune", {"script": "train.py", "goal": "fame"}, "throughput"),
        ("explain", {"code": "--help"}, "lists them all"),
        ("nothing", {}, "one of"),
    ]

    async def talk() -> list[Any]:
        async with server_in(place) as client:
            return [await client.call_tool(name, given) for name, given, _ in calls]

    for (name, given, wanted), result in zip(calls, anyio.run(talk), strict=True):
        error = error_of(result)
        assert error["received"], (name, given)
        assert wanted in f"{error['expected']} {error['remedy']}", (name, given, error)
    assert not (place.work / ".flatout" / "runs").exists()
    assert not (place.work / "skills").exists()


def test_a_cancelled_call_leaves_no_process_and_the_next_one_is_answered(place: Place) -> None:
    place.script(ENDLESS)
    before = place.snapshot()

    async def talk() -> Any:
        async with server_in(place) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "profile", {"script": "train.py", "seconds": 100})
            await anyio.to_thread.run_sync(wait_until, lambda: is_training(place, "train.py"), "no training")
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(wait_until, lambda: not others(place), "processes are left")
                return await client.call_tool("explain", {"code": "F101"})

    assert anyio.run(talk).structured_content["findings"][0]["code"] == "F101"
    assert place.snapshot() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_takes_its_commands_with_it(place: Place, number: signal.Signals) -> None:
    place.script(ENDLESS)
    server = subprocess.Popen(
        [sys.executable, "-m", "flatout", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=place.work,
        env=place.environment(),
    )
    assert server.stdin is not None
    for message in (
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "profile", "arguments": {"script": "train.py", "seconds": 100}},
        },
    ):
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
    wait_until(lambda: is_training(place, "train.py"), "no training")
    server.send_signal(number)
    code = server.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not processes_with(place.token), "processes are left")
    server.stdin.close()


@pytest.mark.full
def test_a_command_or_a_script_that_dies_is_an_error_and_nothing_more(place: Place) -> None:
    place.script(ENDLESS)
    place.script("import torch\nraise ValueError('\\x1b[31mred\\u202e')", "crashes.py")

    async def talk() -> list[Any]:
        async with server_in(place) as client:
            answers: list[Any] = []

            async def call() -> None:
                answers.append(await client.call_tool("profile", {"script": "train.py", "seconds": 100}))

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await anyio.to_thread.run_sync(wait_until, lambda: is_training(place, "train.py"), "nothing")
                [command] = psutil.Process(server_pid(place)).children()
                os.kill(command.pid, signal.SIGKILL)
            answers.append(await client.call_tool("check", {"script": "crashes.py"}))
            answers.append(await client.call_tool("explain", {}))
            await anyio.to_thread.run_sync(wait_until, lambda: not others(place), "processes are left")
            return answers

    killed, crashed, explained = anyio.run(talk)
    assert killed.is_error
    assert "signal 9" in killed.content[0].text
    assert crashed.is_error
    assert "ValueError" in crashed.content[0].text
    assert not re.search("[\x1b\u202e]", crashed.content[0].text)
    assert not explained.is_error


@pytest.mark.full
def test_a_long_answer_is_cut_and_all_of_it_is_in_a_file(place: Place) -> None:
    async def talk() -> Any:
        async with server_in(place, "--most", "4000") as client:
            return await client.call_tool("gpus", {})

    result = anyio.run(talk)
    cut = result.structured_content["cut"]
    assert len(result.content[0].text.encode()) < 4500
    whole = json.loads(Path(cut["path"]).read_text())
    shown = result.structured_content["gpus"]
    assert whole["gpus"][: len(shown)] == shown
    assert cut["left_out"]["gpus"] == len(whole["gpus"]) - len(shown)
    assert Path(cut["path"]).is_relative_to(place.work)


@pytest.mark.full
def test_a_job_runs_and_skills_are_copied_where_that_is_allowed(place: Place) -> None:
    place.script(QUICK + "for _ in range(5): update()\nopen('kept', 'w').close()\n")

    async def talk() -> Any:
        async with server_in(place, "--allow", "run,skills") as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            done = await client.call_tool("run", {"script": "train.py", "as_written": True})
            copied = await client.call_tool("skills_install", {"to": "my/skills"})
            return names, done, copied

    names, done, copied = anyio.run(talk)
    assert names == [*READERS, "run", "skills_install"]
    assert not done.is_error, done.content
    assert done.structured_content["exit_code"] == 0
    assert (place.work / "kept").exists()
    assert (place.work / "my/skills/gpu-optimization/SKILL.md").is_file()
    assert not copied.is_error


def test_over_http_this_machine_alone_is_answered_and_only_with_the_token(place: Place) -> None:
    import httpx2

    server = subprocess.Popen(
        [sys.executable, "-m", "flatout", "mcp", "--http", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.work,
        env=place.environment(),
    )
    assert server.stderr is not None
    url = server.stderr.readline().split()[-1]
    token = server.stderr.readline().split()[-1]

    async def talk() -> Any:
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return await client.call_tool("explain", {"code": "F101"})

    try:
        assert url.startswith("http://127.0.0.1:")
        for headers in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=60)
        assert anyio.run(talk).structured_content["findings"][0]["code"] == "F101"
        elsewhere = {
            "authorization": f"Bearer {token}",
            "host": "evil.example",
            "content-type": "application/json",
        }
        with pytest.raises(urllib.error.HTTPError, match=r"421|403"):
            urllib.request.urlopen(urllib.request.Request(url, b"{}", elsewhere), timeout=60)
    finally:
        server.terminate()
        server.wait(60)
        server.stderr.close()
    assert processes_with(place.token) == {}


def test_without_the_package_the_extra_is_named(place: Place) -> None:
    code = "import sys; sys.modules['mcp'] = None; from flatout.cli.main import main; main(['mcp'])"
    done = place.bare("-c", code)
    assert done.returncode == 3
    assert "flatout[mcp]" in done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--allow", "everything"), "unknown permission 'everything'"),
        (("--root", "nowhere"), "there is no folder 'nowhere'"),
        (("--token-file", "token"), "--token-file without --http"),
    ],
)
def test_wrong_options_are_the_callers_mistake(place: Place, words: tuple[str, ...], wanted: str) -> None:
    done = place.flatout("mcp", *words)
    assert done.returncode == 2
    assert wanted in done.stderr
