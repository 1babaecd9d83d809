"""Every command: its file and its line of help. A plain list, so that `--help` imports none of them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CommandEntry:
    """Where a command lives and what it is for; the file's `command` carries the same line."""

    module: str
    purpose: str


# As shells tell of a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130

COMMANDS: dict[str, CommandEntry] = {
    "doctor": CommandEntry(
        "flatout.cli.doctor", "What machine this is, what is wrong with it, how to fix it."
    ),
    "limits": CommandEntry("flatout.cli.limits", "What this card can really do, against its rated peaks."),
    "check": CommandEntry(
        "flatout.cli.check", "A new script's first minute: does it learn, and is it ready to run?"
    ),
    "profile": CommandEntry(
        "flatout.cli.profile", "Where a script's time goes, and how far it is from the device's limit."
    ),
    "trace": CommandEntry(
        "flatout.cli.trace", "Where the time went and what holds it up, from traces that exist already."
    ),
    "tune": CommandEntry(
        "flatout.cli.tune", "Make a job as fast as it can be without changing what it learns."
    ),
    "run": CommandEntry("flatout.cli.run", "Run a job to its end under the plan that `flatout tune` found."),
    "patch": CommandEntry("flatout.cli.patch", "The plan as a diff of your own source."),
    "fit": CommandEntry("flatout.cli.fit", "Will it fit, and on which GPUs; no GPU needed."),
    "batch": CommandEntry("flatout.cli.batch", "The batch size at the knee of throughput."),
    "watch": CommandEntry("flatout.cli.watch", "GPUs, jobs and processes of this machine, live."),
    "ps": CommandEntry("flatout.cli.ps", "Who holds each GPU, and which training jobs run here."),
    "stop": CommandEntry("flatout.cli.stop", "End a job without losing its work."),
    "power": CommandEntry(
        "flatout.cli.power", "The power cap that costs least energy, and a guard against heat."
    ),
    "cost": CommandEntry(
        "flatout.cli.cost", "Dollars a step, a token, an epoch, and GPU hours paid and not used."
    ),
    "launch": CommandEntry("flatout.cli.launch", "The same job on Slurm, Kubernetes or SkyPilot."),
    "export": CommandEntry("flatout.cli.export", "Metrics of this machine's GPUs and jobs for Prometheus."),
    "fleet": CommandEntry(
        "flatout.cli.fleet", "All machines at a glance: idle, broken, throttled, and what it costs."
    ),
    "export-model": CommandEntry(
        "flatout.cli.export_model", "A module as a package that runs without its Python code."
    ),
    "serve": CommandEntry("flatout.cli.serve", "Optimized inference behind HTTP."),
    "bench": CommandEntry("flatout.cli.bench", "Load a server: latency, throughput, and where its knee is."),
    "gpus": CommandEntry("flatout.cli.gpus", "GPUs that people use: rated peaks, memory, price."),
    "report": CommandEntry("flatout.cli.report", "List saved runs, or read one again, on any machine."),
    "explain": CommandEntry(
        "flatout.cli.explain", "What a finding means, how it is known, and when it can be wrong."
    ),
    "learn": CommandEntry(
        "flatout.cli.learn", "Concepts behind fast training, with figures of this machine."
    ),
    "mcp": CommandEntry("flatout.cli.mcp", "These commands as tools for an agent."),
    "skills": CommandEntry("flatout.cli.skills", "What an agent should know: list it, or copy it."),
    "completion": CommandEntry("flatout.cli.completion", "Print the shell's completion script."),
}
