"""The plan as a diff: right where the place is certain, a snippet where it is not; the rest stays."""

import subprocess
from pathlib import Path

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.tune.fingerprints import places_of_the_user
from flatout.tune.patching import Where, as_text, patch_source

SCRIPT = '''\
"""Trains."""
import torch  # the library
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(4, 4),  # one
    nn.Linear(4, 1),
)
criterion = nn.MSELoss()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)  # as in the paper
for x, y in DataLoader(data, batch_size=8,
                       shuffle=True):
    opt.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    opt.step()
'''
CALL = SCRIPT.splitlines().index("    loss = criterion(model(x), y)") + 1
OPTIMIZER = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.startswith("opt ="))
WHERE = Where(root_call=CALL, optimizer=OPTIMIZER)


def changed(*levers: Choice, source: str = SCRIPT, where: Where = WHERE) -> list[str]:
    """Lines that went, with -, and lines that came, with +."""
    patched = patch_source(source, levers, where, device="cuda:0")
    compile(patched.source, "patched", "exec")
    diff = patched.diff(source, "train.py").splitlines()[2:]
    return [line for line in diff if line[:1] in "+-" and line[1:].strip()]


def test_the_fused_optimizer() -> None:
    assert changed(Choice(id="fused-optimizer")) == [
        "-opt = torch.optim.AdamW(model.parameters(), lr=1e-3)  # as in the paper",
        "+opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # as in the paper",
    ]


def test_the_loaders_settings_in_the_style_of_the_call() -> None:
    assert changed(Choice(id="loader", settings={"num_workers": 4, "batch_size": 8})) == [
        "-                       shuffle=True):",
        "+                       shuffle=True,",
        "+                       num_workers=4):",
    ]


def test_autocast_around_model_and_loss() -> None:
    assert changed(Choice(id="bf16")) == [
        "-    loss = criterion(model(x), y)",
        '+    with torch.autocast("cuda", dtype=torch.bfloat16):',
        "+        loss = criterion(model(x), y)",
    ]


def test_compile_after_an_if_that_may_wrap_the_model() -> None:
    wrapped = "if len(data) > 7:\n    model = nn.DataParallel(model)\n"
    source = SCRIPT.replace("criterion =", f"{wrapped}criterion =", 1)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "model(x)" in text)
    patched = patch_source(source, [Choice(id="compile")], Where(root_call=line), device="cuda")
    assert "DataParallel(model)\nmodel.forward = torch.compile(model.forward)\n" in patched.source
    compile(patched.source, "patched", "exec")


def test_compile_after_the_model_is_made() -> None:
    [line] = changed(Choice(id="compile", settings={"mode": "reduce-overhead"}))
    assert line == '+model.forward = torch.compile(model.forward, mode="reduce-overhead")'
    patched = patch_source(SCRIPT, [Choice(id="compile")], WHERE, device="cuda")
    assert "nn.Linear(4, 1),\n)\nmodel.forward = torch.compile(model.forward)\ncriterion" in patched.source


def test_switches_go_after_the_imports() -> None:
    patched = patch_source(SCRIPT, [Choice(id="tf32")], WHERE, device="cuda")
    expected = "import DataLoader\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n\ntorch.manual_seed"
    assert expected in patched.source


def test_tf32_by_the_names_that_the_script_uses() -> None:
    own = 'torch.backends.cudnn.conv.fp32_precision = "ieee"\n'
    source = SCRIPT.replace("torch.manual_seed(0)\n", own)
    assert changed(Choice(id="tf32"), source=source) == [
        '+torch.backends.cuda.matmul.fp32_precision = "tf32"'
    ]


def test_lines_are_those_that_python_counts() -> None:
    source = SCRIPT.replace("# the library", "# a page\f, a line\u2028")
    for levers in ([Choice(id="bf16")], [Choice(id="compile")], [Choice(id="tf32"), Choice(id="bf16")]):
        assert changed(*levers, source=source) == changed(*levers)


def test_debug_modes_that_a_constant_turns_on() -> None:
    on = SCRIPT.replace(
        "torch.manual_seed(0)\n",
        "torch.manual_seed(0)\n"
        "torch.autograd.set_detect_anomaly(True, check_nan=False)  # while it diverged\n"
        'torch.cuda.set_sync_debug_mode("warn")\n',
    )
    assert changed(Choice(id="debug-modes"), source=on) == [
        "-torch.autograd.set_detect_anomaly(True, check_nan=False)  # while it diverged",
        '-torch.cuda.set_sync_debug_mode("warn")',
        "+torch.autograd.set_detect_anomaly(False, check_nan=False)  # while it diverged",
        "+torch.cuda.set_sync_debug_mode(0)",
    ]
    by_option = on.replace("(True, check_nan=False)", "(args.debug)").replace('("warn")', "(args.mode)")
    patched = patch_source(by_option, [Choice(id="debug-modes")], WHERE, device="cuda:0")
    assert (patched.source, patched.done) == (by_option, ())
    assert "set_detect_anomaly(False)" in patched.snippets[0]


def test_everything_together_and_in_any_order() -> None:
    levers = [Choice(id=name) for name in ("bf16", "tf32", "compile", "fused-optimizer", "cudnn-autotune")]
    first, second = (
        patch_source(SCRIPT, some, WHERE, device="cuda").source for some in (levers, levers[::-1])
    )
    compile(first, "patched", "exec")
    for text in ("autocast", "allow_tf32", "torch.compile(model.forward)", "fused=True", "benchmark = True"):
        assert text in first
        assert text in second


@pytest.mark.parametrize(
    ("lever", "source", "where", "snippet"),
    [
        ("fused-optimizer", SCRIPT, Where(), "fused=True"),
        ("fused-optimizer", SCRIPT.replace("lr=1e-3", "**kwargs"), WHERE, "fused=True"),
        ("fused-optimizer", SCRIPT.replace("lr=1e-3", "lr=1e-3, foreach=True"), WHERE, "fused=True"),
        ("compile", SCRIPT.replace("model(x)", "self.model(x)"), WHERE, "torch.compile"),
        ("compile", SCRIPT.replace("model = nn", "model, other = 1, nn"), WHERE, "torch.compile"),
        ("bf16", SCRIPT.replace("loss.backward()", "train(loss)"), WHERE, "torch.autocast('cuda'"),
        ("bf16", SCRIPT.replace("import torch  #", "import torch as t  #"), WHERE, "torch.autocast"),
        ("channels-last", SCRIPT, WHERE, "channels_last"),
        ("from the future", SCRIPT, WHERE, "flatout run"),
    ],
)  # fmt: skip
def test_what_is_not_certain_becomes_a_snippet(lever: str, source: str, where: Where, snippet: str) -> None:
    patched = patch_source(source, [Choice(id=lever)], where, device="cuda:0")
    assert patched.source == source
    assert not patched.done
    assert snippet in patched.snippets[0]


def test_two_loaders_the_one_that_shuffles_is_the_training_one() -> None:
    source = SCRIPT + "for x, y in DataLoader(held_out, batch_size=8):\n    pass\n"
    lines = changed(Choice(id="loader", settings={"num_workers": 4}), source=source)
    assert lines[-1] == "+                       num_workers=4):"
    unclear = source.replace("shuffle=True", "drop_last=True")
    assert changed(Choice(id="loader", settings={"num_workers": 4}), source=unclear) == []


@pytest.mark.parametrize("script", [SCRIPT, SCRIPT.rstrip("\n")])
def test_the_patch_applies_with_git(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    levers = tuple(Choice(id=name) for name in ("bf16", "compile", "fused-optimizer", "channels-last"))
    plan = Plan(
        job=Fingerprint(script="train.py", script_sha256="", device="NVIDIA H200"),
        levers=levers,
        where={"root_call": ("train.py", CALL), "optimizer": ("train.py", OPTIMIZER)},
    )
    text = as_text(plan, tmp_path)
    places = "# the model is called in train.py:16; the optimizer is made in train.py:12\n"
    by_hand = "# by hand:\n#     model = model.to(memory_format=torch.channels_last)\n"
    assert text.startswith(places + by_hand)
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tmp_path, check=True)
    after = (tmp_path / "train.py").read_text()
    assert "fused=True" in after
    assert "autocast" in after


def test_an_optimizer_in_another_file_is_changed_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("opt = torch.optim.AdamW(model.parameters(), lr=1e-3)", "opt = made(model)")
    )
    (tmp_path / "made.py").write_text(
        "import torch\ndef made(m):\n    return torch.optim.Adam(m.parameters())\n"
    )
    plan = Plan(
        job=Fingerprint(script="train.py", script_sha256="", device="cpu"),
        levers=(Choice(id="fused-optimizer"), Choice(id="bf16")),
        where={"root_call": ("train.py", CALL), "optimizer": ("made.py", 3)},
    )  # fmt: skip
    text = as_text(plan, tmp_path)
    assert "+    return torch.optim.Adam(m.parameters(), fused=True)" in text
    assert '+    with torch.autocast("cpu", dtype=torch.bfloat16):' in text


def test_a_script_that_lies_elsewhere_is_named_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    job = Fingerprint(script=str(script), script_sha256="")
    text = as_text(Plan(job=job, levers=(Choice(id="tf32"),)), tmp_path / "here")
    assert text.splitlines()[0] == f"--- {script}"
    assert text.splitlines()[1] == f"+++ {script}"


def test_places_beside_a_script_that_lies_elsewhere_are_the_users_too(tmp_path: Path) -> None:
    here, script = tmp_path / "here", tmp_path / "elsewhere" / "train.py"
    library = script.parent / "lib" / "site-packages" / "torch.py"
    for one in (here / "made.py", script, library, tmp_path / "other" / "util.py"):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.write_text(SCRIPT)
    where = {
        "optimizer": [str(here / "made.py"), 3],
        "root_call": [str(script), CALL],
        "library": [str(library), 1],
        "nobodys": [str(tmp_path / "other" / "util.py"), 1],
    }
    found = places_of_the_user(here, "../elsewhere/train.py", where)
    assert found == {"optimizer": ("made.py", 3), "root_call": (str(script), CALL)}
    assert set(places_of_the_user(here, "a_module", where)) == {"optimizer"}


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(id="attention"), "scaled_dot_product_attention(q, k, v, is_causal=True)"),
        (Choice(id="sdpa-backend", settings={"first": "cudnn"}), "SDPBackend.CUDNN_ATTENTION"),
        (Choice(id="cpu-threads", settings={"threads": 4}), "torch.set_num_threads(4)"),
        (Choice(id="block-checkpointing", settings={"share": 0.5}), "for 50% of the blocks"),
        (Choice(id="activation-offload", settings={"share": 1.0}), "save_on_cpu(pin_memory=True)"),
        (Choice(id="allocator"), "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        (Choice(id="batch-size", settings={"--batch-size": 32, "_was": 4}), "--batch-size 32"),
        (Choice(id="batch-size", settings={"loader": 32, "_was": 4}), "batch_size=32"),
        (Choice(id="device-prefetch", settings={"_leaves": ["0"]}), "wait_stream(copies)"),
    ],
    ids=lambda value: value.words() if isinstance(value, Choice) else "",
)
def test_what_has_no_place_in_the_source_is_told_as_a_snippet(choice: Choice, says: str) -> None:
    [snippet] = patch_source(SCRIPT, [choice], Where(), device="cuda").snippets
    assert says in snippet
