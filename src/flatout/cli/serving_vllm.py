"""`flatout serve --engine vllm`: a plan with its reasons, then vLLM in place of this process."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from flatout.cli.options import Output, refuse_beside
from flatout.cli.serving import warn_if_open
from flatout.records.errors import (
    EXIT_DONE,
    CallerMistake,
    EnvironmentProblem,
    MissingExtra,
)

# Options of ours that vLLM has, too.
_PASSED_ON = ("host", "port", "token", "rows", "context")


def serve_with_vllm(
    output: Output, llm: str | None, *, dry_run: bool, gpu: str, count: int | None, options: dict[str, Any]
) -> int:
    """Plan, show, and hand over: it does not come back from there."""
    from flatout.infer.serving.vllm import vllm_plan
    from flatout.memory.language_models import read_language_model
    from flatout.report.serving import draw_plan

    if llm is None:
        raise CallerMistake(
            "--engine vllm without --llm", expected="--llm FOLDER", remedy="flatout serve --help"
        )
    refuse_beside("--engine vllm", ("llm", "engine", "gpu", "count", "dry_run", *_PASSED_ON))
    warn_if_open(output, options["host"], options["token"] or os.environ.get("VLLM_API_KEY", ""))
    name, memory_bytes, gpus = _gpus(gpu, count)
    plan = vllm_plan(
        Path(llm),
        read_language_model(Path(llm)),
        gpu=name,
        gpu_bytes=memory_bytes,
        gpus=gpus,
        host=options["host"],
        port=options["port"],
        context=options["context"],
        texts=options["rows"],
    )
    if output.as_json:
        output.document("serve-plan", 1, plan)
    else:
        draw_plan(plan, output.console())
    if dry_run:
        return EXIT_DONE
    program = shutil.which("vllm") or shutil.which("vllm", path=str(Path(sys.executable).parent))
    if program is None:
        raise MissingExtra(
            "vllm", extra="vllm", wanted_for="--engine vllm; --dry-run shows the command without it"
        )
    sys.stdout.flush()
    # A token in the environment is seen by fewer than one in a command line.
    environment = {**os.environ, **({"VLLM_API_KEY": options["token"]} if options["token"] else {})}
    os.execve(program, [program, *plan.command[1:]], environment)  # noqa: S606
    raise AssertionError


def _gpus(wanted: str, count: int | None) -> tuple[str, int, int]:
    """Name, memory and number of the GPUs: of the catalogue, or of this machine."""
    from flatout.hardware.catalogue import select
    from flatout.hardware.machine import default_sources

    if wanted:
        entry = select([wanted])[0]
        return entry.name, entry.usable_bytes, count or 1
    sources = default_sources()
    try:
        found = [
            device for source in sources for device in source.discover().devices if device.vendor != "cpu"
        ]
    finally:
        for source in sources:
            source.close()
    known = [device for device in found if device.memory_total_bytes]
    if not known:
        raise EnvironmentProblem(
            "no GPU here",
            expected="a GPU for vLLM, or the name of one to plan for",
            remedy="--gpu h200 --dry-run",
        )
    smallest = min(known, key=lambda device: device.memory_total_bytes or 0)
    return smallest.name, smallest.memory_total_bytes or 0, min(count or len(known), len(known))
