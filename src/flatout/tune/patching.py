"""The plan as changes of the user's own source: what can be edited safely, and a snippet for the rest.

Format and comments are kept. An edit is made only where the place is certain: the line at which the
session saw the model called, the optimizer made. Whatever is not certain becomes a snippet.
"""

import ast
import dataclasses
import difflib
import textwrap
from collections.abc import Sequence
from pathlib import Path

from flatout.records.plan import Choice, Plan
from flatout.tune.edits import (
    at_the_top,
    lines_of,
    with_autocast,
    with_compile,
    with_fused,
    with_loader_settings,
    without_debug_modes,
)

_EDITED = ("debug-modes", "fused-optimizer", "loader", "compile", "bf16", "tf32", "cudnn-autotune")
_AT_THE_TOP = {
    "tf32": "torch.backends.cuda.matmul.allow_tf32 = True",
    "cudnn-autotune": "torch.backends.cudnn.benchmark = True",
}
_SNIPPETS = {
    "bf16": "with torch.autocast({device!r}, dtype=torch.bfloat16):  # around model and loss\n    ...",
    "compile": "model.forward = torch.compile(model.forward{mode})  # after the model is on its device",
    "fused-optimizer": "optimizer = ...(model.parameters(), ..., fused=True)",
    "channels-last": (
        "model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)  # each batch"
    ),
    "garbage-collector": "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 50)  # before the loop",
    "debug-modes": "torch.autograd.set_detect_anomaly(False)",
    "loader": "DataLoader(..., {settings})",
    "attention": (
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "# in place of scores, mask, softmax and their product with v; attn_mask=... if it is not causal"
    ),
    "sdpa-backend": (
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "order = [SDPBackend.{kernel}, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]\n"
        "with sdpa_kernel(order, set_priority=True):  # around the model's call\n    ..."
    ),
    "linear-cross-entropy": (
        "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss\n"
        "loss = LigerFusedLinearCrossEntropyLoss()(head.weight, hidden, targets)  # hidden: before the head"
    ),
    "hf-switches": 'model.set_attn_implementation("sdpa")  # and use_cache=False in calls that train',
    "hf-checkpointing": (
        "model.gradient_checkpointing_enable()  # activation_checkpointing_enable() in newer transformers"
    ),
    "block-checkpointing": (
        "from torch.utils.checkpoint import checkpoint\n"
        "x = checkpoint(block, x, use_reentrant=False)  # for {share:.0%} of the blocks, the first ones"
    ),
    "activation-offload": (
        "with torch.autograd.graph.save_on_cpu(pin_memory=True):  # around the model's call\n    ..."
    ),
    "liger": (
        "from liger_kernel.transformers import apply_liger_kernel_to_llama  # or that of your model\n"
        "apply_liger_kernel_to_llama(model=model, fused_linear_cross_entropy=False)"
    ),
    "activation-budget": (
        "import torch._functorch.config\n"
        "torch._functorch.config.activation_memory_budget = {budget}  # before anything is compiled"
    ),
    "thread-affinity": "os.sched_setaffinity(0, cores)  # those of the GPU's NUMA node: nvidia-smi topo -m",
    "cpu-threads": "torch.set_num_threads({threads})",
    "allocator": "PYTORCH_ALLOC_CONF=expandable_segments:True python ...  # in the environment",
    "batch-size": "{command}",
    "device-prefetch": (
        "def ahead(loader, device):  # for batch in ahead(loader, device): ... without .to(device)\n"
        "    copies, coming = torch.cuda.Stream(), None\n"
        "    for batch in itertools.chain(loader, [None]):\n"
        "        with torch.cuda.stream(copies):\n"
        "            moved = batch and [tensor.to(device, non_blocking=True) for tensor in batch]\n"
        "        if coming is not None:\n"
        "            yield coming\n"
        "        torch.cuda.current_stream().wait_stream(copies)\n"
        "        for tensor in moved or ():\n"
        "            tensor.record_stream(torch.cuda.current_stream())\n"
        "        coming = moved"
    ),
}
# The new name for TF32, and what says that a script uses the new ones: mixing them with the old raises.
_NEW_NAME, _NEW_TF32 = "fp32_precision", 'torch.backends.cuda.matmul.fp32_precision = "tf32"'
_NO_NEWLINE = "\\ No newline at end of file"
_KERNELS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """Lines of the script at which things happened."""

    root_call: int | None = None
    optimizer: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patched:
    """The changed source, and what is left to do by hand."""

    source: str
    done: tuple[str, ...]
    snippets: tuple[str, ...]

    def diff(self, before: str, name: str) -> str:
        """A unified diff, for `git apply` and `patch -p1`; of a file elsewhere for `patch FILE`."""
        elsewhere = lies_elsewhere(name)
        lines = difflib.unified_diff(
            lines_of(before),
            lines_of(self.source),
            name if elsewhere else f"a/{name}",
            name if elsewhere else f"b/{name}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in lines)


def lies_elsewhere(name: str) -> bool:
    """Not below the folder in which the patch is made: `git apply` and `patch -p1` refuse such a file."""
    return Path(name).is_absolute() or ".." in Path(name).parts


def patch_source(source: str, levers: Sequence[Choice], where: Where, *, device: str) -> Patched:
    """Edit the source for each lever where its place is certain."""
    done: list[str] = []
    snippets: list[str] = []
    imports_torch = any(
        isinstance(node, ast.Import) and any(one.name == "torch" and not one.asname for one in node.names)
        for node in ast.parse(source).body
    )
    # Single lines first, blocks and heads last: the places of the others stay what they are.
    for choice in sorted(levers, key=lambda one: _EDITED.index(one.id) if one.id in _EDITED else -1):
        changed = None
        if choice.id in _AT_THE_TOP and imports_torch:
            is_new = choice.id == "tf32" and _NEW_NAME in source
            changed = at_the_top(source, _NEW_TF32 if is_new else _AT_THE_TOP[choice.id])
        elif choice.id == "fused-optimizer":
            changed = with_fused(source, where.optimizer)
        elif choice.id == "debug-modes":
            changed = without_debug_modes(source)
        elif choice.id == "loader":
            changed = with_loader_settings(source, choice.settings)
        elif choice.id == "bf16" and imports_torch:
            changed = with_autocast(source, where.root_call, device)
        elif choice.id == "compile" and imports_torch:
            changed = with_compile(source, where.root_call, choice.settings.get("mode", "default"))
        if changed is None or changed == source:
            snippets.append(_snippet(choice, device))
        else:
            where = _moved(where, source, changed)
            source = changed
            done.append(choice.id)
    return Patched(source=source, done=tuple(done), snippets=tuple(snippets))


def patch_files(plan: Plan, folder: Path) -> tuple[dict[str, tuple[str, Patched]], tuple[str, ...]]:
    """By file, what it was and what it becomes; and snippets for what no file is certain for."""
    root_file, root_line = plan.where.get("root_call", (plan.job.script, None))
    optimizer_file, optimizer_line = plan.where.get("optimizer", (root_file, None))
    device = "cuda" if not plan.job.device.startswith("cpu") else "cpu"
    found: dict[str, tuple[str, Patched]] = {}
    snippets: list[str] = []
    for name in dict.fromkeys((root_file, optimizer_file)):
        levers = [
            choice
            for choice in plan.levers
            if (name == optimizer_file if choice.id == "fused-optimizer" else name == root_file)
        ]
        path = folder / name
        if not levers or not path.is_file() or path.suffix != ".py":
            snippets += [_snippet(choice, device) for choice in levers]
            continue
        source = path.read_text()
        where = Where(
            root_call=root_line if name == root_file else None,
            optimizer=optimizer_line if name == optimizer_file else None,
        )
        patched = patch_source(source, levers, where, device=device)
        snippets += patched.snippets
        if patched.done:
            found[name] = (source, patched)
    return found, tuple(snippets)


def as_text(plan: Plan, folder: Path) -> str:
    """The whole patch, with what is left to do by hand as comments at its head."""
    files, snippets = patch_files(plan, folder)
    places = {"root_call": "the model is called", "optimizer": "the optimizer is made"}
    known = [
        f"{words} in {':'.join(map(str, plan.where[one]))}"
        for one, words in places.items()
        if one in plan.where
    ]
    where = f"# {'; '.join(known)}\n" if snippets and known else ""
    head = where + "".join(
        f"# by hand:\n{textwrap.indent(snippet, '#     ', lambda _line: True)}\n" for snippet in snippets
    )
    return head + "".join(patched.diff(before, name) for name, (before, patched) in files.items())


def divided(plan: Plan, folder: Path) -> tuple[list[str], list[str]]:
    """What of the plan the diff holds, and what is left to do by hand."""
    files, _ = patch_files(plan, folder)
    done = {lever for _, patched in files.values() for lever in patched.done}
    in_the_diff = [choice.words() for choice in plan.levers if choice.id in done]
    return in_the_diff, [choice.words() for choice in plan.levers if choice.id not in done]


def _snippet(choice: Choice, device: str) -> str:
    kind = "cuda" if device.startswith("cuda") else "cpu"
    mode = choice.settings.get("mode", "default")
    text = _SNIPPETS.get(choice.id, f"# {choice.words()}: `flatout run` applies it")
    return text.format(
        device=kind,
        mode="" if mode == "default" else f', mode="{mode}"',
        settings=", ".join(f"{name}={value!r}" for name, value in choice.settings.items()),
        threads=choice.settings.get("threads"),
        budget=choice.settings.get("budget"),
        share=choice.settings.get("share", 1.0),
        kernel=_KERNELS.get(choice.settings.get("first", ""), ""),
        command=_how_to_set_the_batch(choice),
    )


def _how_to_set_the_batch(choice: Choice) -> str:
    own = {name: value for name, value in choice.settings.items() if not name.startswith("_")}
    name, value = next(iter(own.items()), ("", ""))
    if name == "loader":
        return f"DataLoader(..., batch_size={value})  # and see to the learning rate"
    return f"{name} {value}  # on the command line; and see to the learning rate"


def _moved(where: Where, before: str, after: str) -> Where:
    """The same places in the changed source."""
    matcher = difflib.SequenceMatcher(None, lines_of(before), lines_of(after), autojunk=False)

    def follow(line: int | None) -> int | None:
        if line is None:
            return None
        for tag, i1, i2, j1, _ in matcher.get_opcodes():
            if i1 <= line - 1 < i2:
                return line - i1 + j1 if tag in ("equal", "replace") else None
        return None

    return Where(**{name: follow(line) for name, line in dataclasses.asdict(where).items()})
