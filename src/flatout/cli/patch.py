"""`flatout patch`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options
from flatout.records.places import DEFAULT_PLAN


@click.command("patch", short_help=COMMANDS["patch"].purpose)
@click.option(
    "--plan", "plan_path", default=DEFAULT_PLAN, show_default=True, help="The plan to turn into a diff."
)
@common_options
def command(output: Output, plan_path: str) -> int:
    """The plan as a diff of your own source.

    Prints a unified diff for what can be edited safely, format and comments kept; what has no certain place
    comes as a snippet, in comments at the head, which `git apply` leaves out: the last lines say which levers
    are in the diff, and which are left to you. Nothing is written. Run it where the job was tuned.

    \b
    Examples:
      flatout patch
      flatout patch | git apply
      flatout patch --plan h200.toml > faster.patch
      flatout patch --json | jq -r .patch
    """
    import hashlib
    import shlex

    from flatout.records.errors import EXIT_DONE, CallerMistake
    from flatout.records.plan import read_plan
    from flatout.tune.patching import as_text, divided, lies_elsewhere, patch_files
    from flatout.tune.soundness import sound

    if plan_path == DEFAULT_PLAN and not Path(plan_path).exists():
        _insist_on_a_gain()
    plan, dropped = sound(read_plan(Path(plan_path)), Path(plan_path))
    for text in dropped:
        output.notice(f"flatout: {text}")
    script = Path(plan.job.script)
    if not script.is_file():
        raise CallerMistake(
            f"there is no {plan.job.script} here, for which {plan_path} was made",
            expected="the folder in which the job was tuned",
            remedy="cd there",
        )
    if plan.job.script_sha256 and hashlib.sha256(script.read_bytes()).hexdigest() != plan.job.script_sha256:
        raise CallerMistake(
            f"{script} has changed since it was tuned: lines may have moved",
            expected=f"the script as it was when {plan_path} was made",
            remedy=f"flatout tune {script}   # and patch again",
        )
    patch = as_text(plan, Path.cwd())
    in_the_diff, by_hand = divided(plan, Path.cwd())
    if output.as_json:
        levers = [choice.words() for choice in plan.levers]
        body = {
            "plan": plan_path,
            "script": str(script),
            "levers": levers,
            "in_the_diff": in_the_diff,
            "by_hand": by_hand,
            "dropped": dropped,
            "patch": patch,
        }
        output.document("patch", 1, body)
    else:
        click.echo(patch, nl=False)
        output.notice(f"flatout: in the diff: {', '.join(in_the_diff) or 'nothing'}")
        for name in filter(lies_elsewhere, patch_files(plan, Path.cwd())[0]):
            output.notice(f"flatout: {name} lies elsewhere: flatout patch | patch {shlex.quote(name)}")
        if by_hand:
            output.notice(f"flatout: by hand, as the comments above it say: {', '.join(by_hand)}")
    return EXIT_DONE


def _insist_on_a_gain() -> None:
    """Where the last tuning found none there is no plan, and nothing is wrong."""
    from flatout.records.errors import CallerMistake, FlatoutError
    from flatout.records.places import PROJECT_FOLDER
    from flatout.records.runs import find_run
    from flatout.records.tuning import Tuning

    try:
        tuning = find_run(Path(PROJECT_FOLDER), "latest", of="tune").read("tune", 1, Tuning)
    except FlatoutError:
        return
    if tuning.plan is None:
        raise CallerMistake(
            f"there is nothing to patch: the last tuning, {tuning.run}, found no gain",
            expected="a tuning that found one",
            remedy=f"flatout report {tuning.run}   # what it tried, and why nothing was kept",
        )
