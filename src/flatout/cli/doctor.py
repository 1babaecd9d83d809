"""`flatout doctor`."""

import sys

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options, save_option, save_run
from flatout.records.errors import EXIT_DONE, EXIT_FINDING, CallerMistake


@click.command("doctor", short_help=COMMANDS["doctor"].purpose)
@click.option("--python", default=sys.executable, help="Look at this Python's torch instead of our own.")
@click.option("--problems", is_flag=True, help="Show only what is not ok.")
@save_option
@common_options
def command(output: Output, python: str, problems: bool, save: bool) -> int:
    """What machine this is, what is wrong with it, how to fix it.

    Looks at the GPUs of every vendor, their drivers, clocks, power, links and memory errors; lets torch
    (TensorFlow and JAX too, where installed) really compute on them; looks at container limits, shared
    memory, disks, and at debug switches that were left on. Changes nothing.

    \b
    Examples:
      flatout doctor
      flatout doctor --problems
      flatout doctor --python ~/envs/train/bin/python
      flatout doctor --json | jq '.checks[] | select(.status != "ok")'

    Exits with 1 when a check fails.
    """
    from flatout.hardware.catalogue import rated_for
    from flatout.hardware.frameworks import FRAMEWORKS, is_python
    from flatout.hardware.health.catalogue import examine
    from flatout.hardware.machine import gather_machine
    from flatout.records.machine import DoctorReport
    from flatout.report.doctor import draw_doctor

    if not is_python(python):
        raise CallerMistake(
            f"no Python at {python!r}",
            expected="the path of a Python interpreter",
            remedy='flatout doctor --python "$(command -v python3)"',
        )
    with output.progress("looking at this machine") as step:
        finished: list[str] = []
        steps = len(FRAMEWORKS) + 1

        def on_done(what: str) -> None:
            finished.append(what)
            step("letting torch compute" if finished == ["devices"] else "looking", len(finished), steps)

        machine = gather_machine(python=python, on_done=on_done)
    entries = {device.uuid: rated_for(device) for device in machine.gpus if device.uuid}
    report = DoctorReport(
        devices=machine.devices,
        samples=machine.samples,
        host=machine.host,
        frameworks=machine.frameworks,
        checks=examine(machine),
        rated={uuid: entry.id for uuid, entry in entries.items() if entry},
    )
    if output.as_json:
        output.document("doctor", 1, report)
    else:
        draw_doctor(report, output.console(), problems_only=problems)
    if save:
        save_run(output, "doctor", 1, report)
    failed = any(check.status == "fail" for check in report.checks)
    return EXIT_FINDING if failed else EXIT_DONE
