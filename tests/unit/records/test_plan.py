"""The plan's file: written for people, read back without loss, refused where it is broken."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.records.errors import BadConfig
from flatout.records.plan import Choice, Fingerprint, Plan, as_toml, read_plan

JOB = Fingerprint(
    script="train.py",
    script_sha256="ab" * 32,
    arguments=("--lr", "3e-4"),
    device="NVIDIA H200",
    torch="2.11.0",
)


def plan(**changes: object) -> Plan:
    levers = (
        Choice(id="bf16", predicted_speedup=1.9, measured_speedup=2.4, reason="bf16 autocast"),
        Choice(id="compile", settings={"mode": "reduce-overhead"}, measured_speedup=2.25),
        Choice(id="loader", settings={"num_workers": 8, "persistent_workers": True}),
    )
    given_fields = {"job": JOB, "levers": levers, "samples_per_s": 280.5, "speedup": 7.1, **changes}
    return Plan(**given_fields)  # type: ignore[arg-type]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "flatout.toml"
    path.write_text(text)
    return path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    plan().write(path)
    found = read_plan(path)
    assert found.job == JOB
    assert [choice.order() for choice in found.levers] == [choice.order() for choice in plan().levers]
    assert (found.samples_per_s, found.speedup, found.baseline_samples_per_s) == (280.5, 7.1, None)


def test_each_lever_says_why_it_is_there() -> None:
    text = as_toml(plan())
    assert '# bf16 autocast\n# predicted 1.90x, measured 2.40x\n[[lever]]\nid = "bf16"' in text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(
    TEXTS, st.integers(-(2**53), 2**53), st.booleans(), st.lists(st.integers(0, 9), max_size=3)
)


@given(st.dictionaries(TEXTS.filter(bool), VALUES, max_size=4), TEXTS, st.lists(TEXTS, max_size=3))
def test_whatever_words_a_job_has_they_survive(settings: dict, script: str, arguments: list[str]) -> None:
    import tomllib

    job = Fingerprint(script=script, script_sha256="", arguments=tuple(arguments))
    plain = tomllib.loads(as_toml(Plan(job=job, levers=(Choice(id="x", settings=settings),))))
    assert plain["job"]["script"] == script
    assert plain["job"]["arguments"] == arguments
    assert plain["lever"][0].get("settings", {}) == settings


HEAD = "version = 1\n[job]\nscript = 'a'\nscript_sha256 = ''\n"


def test_bytes_that_are_no_text_do_not_cost_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "flatout.toml"
    plan(job=dataclasses.replace(JOB, arguments=("--data", "/d/\udcff"))).write(path)
    assert read_plan(path).job.arguments == ("--data", "/d/\\udcff")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = ", "not TOML"),
        ("version = 7\n[job]\n", "version 7"),
        ("[job]\nscript = 'x'", "version None"),
        ("version = 1\n", "job"),
        ("version = 1\n[job]\nscript = 3\nscript_sha256 = ''\n", "line 3, key 'script'"),
        (f"{HEAD}[[lever]]\nname = 'bf16'\n", "line 6, key 'name': unknown key"),
        (f"{HEAD}[[lever]]\nsettings = {{}}\n", "the key 'id'"),
        (f"{HEAD}[[levers]]\nid = 'bf16'\n", "line 5, key 'levers': unknown key\n.*\n.*'lever'"),
        (f"{HEAD}[[lever]]\nid = 'loader'\nsetings = {{ num_workers = 8 }}\n", "line 7, key 'setings'"),
        (f"{HEAD}[[lever]]\nid = 'bf16'\n[[lever]]\nid = 5\n", "line 8, key 'id': Expected `str`"),
        (f"lever = 3\n{HEAD}", "line 1, key 'lever'"),
        (f"measured = 3\n{HEAD}", "line 1, key 'measured'"),
    ],
)
def test_a_broken_plan_is_refused_with_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadConfig, match=says) as caught:
        read_plan(written(tmp_path, text))
    assert "flatout.toml" in str(caught.value)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no such file"):
        read_plan(tmp_path / "none.toml")


def test_a_script_may_move_and_may_change() -> None:
    moved = dataclasses.replace(JOB, script="jobs/elsewhere.py")
    assert JOB.differences(moved) == []
    changed = dataclasses.replace(JOB, script=f"jobs/{JOB.script}", script_sha256="cd" * 32)
    assert JOB.differences(changed) == ["the script has changed since"]
    assert not JOB.is_of_another_script(changed)


def test_a_script_of_the_same_name_beside_the_one_of_the_plan_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"print({folder!r})")
    mine, other = (Fingerprint(script=f"{one}/train.py", script_sha256=one * 64) for one in "ab")
    assert mine.is_of_another_script(other)
    assert not mine.is_of_another_script(dataclasses.replace(other, script=str(tmp_path / "a" / "train.py")))
    (tmp_path / "a" / "train.py").unlink()
    assert not mine.is_of_another_script(other)


def test_what_was_measured_is_a_promise_for_the_same_job_alone() -> None:
    assert JOB.why_no_promise(dataclasses.replace(JOB, torch="2.12.0")) == ""
    assert "tuned on NVIDIA H200, not NVIDIA L4" in JOB.why_no_promise(
        dataclasses.replace(JOB, device="NVIDIA L4")
    )
    assert JOB.why_no_promise(dataclasses.replace(JOB, device="")) == ""  # not known yet
    changed = dataclasses.replace(JOB, script_sha256="cd" * 32)
    assert "has changed" in JOB.why_no_promise(changed)
    assert "arguments" in JOB.why_no_promise(dataclasses.replace(JOB, arguments=("--width", "1")))
    assert "another script" in JOB.why_no_promise(dataclasses.replace(changed, script="other.py"))


def test_modules_are_told_apart_by_their_names() -> None:
    mine, other = (Fingerprint(script=f"-m pkg.{one}", script_sha256="") for one in ("train", "other"))
    assert mine.is_of_another_script(other)
    assert not mine.is_of_another_script(mine)


def test_a_plan_of_another_job_says_what_differs() -> None:
    other = Fingerprint(
        script="other.py",
        script_sha256="cd" * 32,
        arguments=("--lr", "1"),
        device="NVIDIA L4",
        torch="2.11.0",
    )
    assert JOB.differences(JOB) == []
    assert JOB.differences(other) == [
        "it was made for another script: train.py",
        "it was made with the arguments '--lr 3e-4', not '--lr 1'",
        "it was made on device NVIDIA H200, not NVIDIA L4",
    ]


def test_of_long_command_lines_what_differs_is_told() -> None:
    same = tuple(f"--option-{number}" for number in range(9))
    one = Fingerprint(script="train.py", script_sha256="", arguments=(*same, "--lr=1"))
    other = dataclasses.replace(one, arguments=(*same, "--lr=2"))
    assert one.differences(other) == ["it was made with the arguments '--lr=1', not '--lr=2'"]
    turned = dataclasses.replace(one, arguments=one.arguments[::-1])
    assert "--option-8 --lr=1', not '--lr=1 --option-8" in one.differences(turned)[0]
