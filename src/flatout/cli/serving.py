"""The serving process, started and looked after: its words shown, signals passed on, its end waited for."""

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from flatout.cli.options import Output
from flatout.records.errors import (
    EXIT_DONE,
    CallerMistake,
    ChildFailed,
    EnvironmentProblem,
    FlatoutError,
    JobFailed,
    MissingExtra,
)
from flatout.records.serving import ServeOrder, Serving

_NAMES = {
    "max_batch": "most_batch",
    "latency": "latency_s",
    "max_wait": "wait_s",
    "timeout": "timeout_s",
    "max_body": "body_bytes",
    "drain": "drain_s",
}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    output: Output, target: str | None, llm: str | None, *, dry_run: bool, options: dict[str, Any]
) -> int:
    """Start the process and stay until it ends; its exit code."""
    if (target is None) == (llm is None):
        raise CallerMistake(
            "two things to serve" if target else "nothing to serve",
            expected="module:factory or a file, or --llm FOLDER",
            remedy="flatout serve --help",
        )
    if dry_run:
        raise CallerMistake("--dry-run", expected="--engine vllm beside it", remedy="flatout serve --help")
    for package in ("torch", "starlette", "uvicorn", "httptools", *(("transformers",) if llm else ())):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                package, extra="torch" if package == "torch" else "serve", wanted_for="flatout serve"
            )
    _look_early(target, llm, options)
    order = ServeOrder(
        target=llm or target or "",
        llm=llm is not None,
        **{_NAMES.get(key, key): value for key, value in options.items()},
    )
    warn_if_open(output, order.host, order.token)
    return _Watched(output, order).run()


def warn_if_open(output: Output, host: str, token: str) -> None:
    """A server that others reach should ask who they are."""
    if host not in _LOOPBACK and not token:
        output.notice(f"anybody who reaches {host} may use this server: --token asks for one")


def _look_early(target: str | None, llm: str | None, options: dict[str, Any]) -> None:
    """What can be seen without torch, before anybody waits for it."""
    from flatout.infer.serving.placing import check_words
    from flatout.infer.serving.specs import checked_pads, parsed

    check_words(options["device"])
    specs = tuple(map(parsed, options["inputs"]))
    # Without --input, the model's own examples name its inputs, later.
    if specs:
        checked_pads(options["pads"], specs)
    if llm is not None and not (Path(llm) / "config.json").is_file():
        raise CallerMistake(
            f"{llm} has no config.json",
            expected="a folder with a language model of Hugging Face",
            remedy="hf download OWNER/NAME --local-dir FOLDER",
        )
    if target is not None and Path(target).suffix in (".pt", ".pt2") and not Path(target).is_file():
        raise CallerMistake(
            f"{target} does not exist",
            expected="a .pt2 or .pt file",
            remedy="check the path; module:factory is another way",
        )


class _Watched:
    """A child that serves."""

    def __init__(self, output: Output, order: ServeOrder) -> None:
        self._output, self._order = output, order
        self._error: FlatoutError | None = None
        self._passed: set[int] = set()

    def run(self) -> int:
        """Until it ends."""
        reading, writing = os.pipe()
        # Its order comes over its standard input, which is held open here from then on: should this process
        # be killed, the child ends in good order.
        held, ours = os.pipe()
        order = dataclasses.replace(self._order, events_fd=writing)
        child = subprocess.Popen(
            [sys.executable, "-m", "flatout.infer.serving.process"],
            stdin=held,
            stdout=sys.stderr if self._output.as_json else None,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        os.close(held)
        before = self._pass_on(child)
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code says so
                os.write(ours, msgspec.json.encode(order) + b"\n")
            self._follow(reading)
            code = child.wait()
        finally:
            os.close(ours)
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error
        if -code in self._passed:  # before it could listen for signals: nothing was accepted
            return EXIT_DONE
        if code < 0:
            raise ChildFailed(
                f"the serving process was ended by {signal.Signals(-code).name}",
                expected="it to end by itself",
                remedy="dmesg | tail   # did memory run out?",
            )
        return code

    def _follow(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as stream:
            serving = self._until_ready(stream)
            if serving is not None:
                self._show(serving)
            for line in stream:
                self._heard(msgspec.json.decode(line))

    def _until_ready(self, stream: IO[bytes]) -> Serving | None:
        with self._output.progress("starting") as progress:
            for line in stream:
                event = msgspec.json.decode(line)
                if event["event"] == "ready":
                    return msgspec.convert(event["serving"], Serving)
                if event["event"] == "stage":
                    progress(event["name"], 0, 0)
                else:
                    self._heard(event)
        return None

    def _pass_on(self, child: "subprocess.Popen[bytes]") -> dict[int, Any]:
        """Signals to the child, which knows how to end."""

        def pass_on(number: int, _frame: Any) -> None:
            if child.poll() is None:
                sent = signal.SIGTERM if number == signal.SIGHUP else number
                self._passed.add(sent)
                child.send_signal(sent)

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        return {number: signal.signal(number, pass_on) for number in numbers}

    def _show(self, serving: Serving) -> None:
        from flatout.report.serving import draw_serving

        if self._output.as_json:
            self._output.document("serve", 1, serving)
            sys.stdout.flush()
        else:
            draw_serving(serving, self._output.console())

    def _heard(self, event: dict[str, Any]) -> None:
        if event["event"] == "error":
            parts = {name: event[name] for name in ("expected", "remedy")}
            kind = {2: CallerMistake, 3: EnvironmentProblem}.get(event["exit_code"])
            self._error = (kind or JobFailed)(event["received"], **parts)
            root = click.get_current_context().find_root().obj
            if root and root.get("debug"):
                click.echo(event["trace"], err=True)
        elif event["event"] == "draining":
            self._output.notice("ending: what was accepted is answered")
