"""Arguments of tools: typed as the commands have them, and never an option that nobody gave."""

from typing import Any

import click
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.cli.agents.arguments import input_schema
from flatout.cli.agents.documents import output_schema
from flatout.cli.agents.places import Root
from flatout.cli.agents.server import Agents
from flatout.cli.agents.tools import BY_NAME, PERMISSIONS, TOOLS
from flatout.records.errors import CallerMistake


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    folder = tmp_path_factory.mktemp("root")
    (folder / "train.py").touch()
    (folder / "package").mkdir()
    (folder / "package" / "train.py").touch()
    return Root(folder)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_are_schemas_and_name_real_options(tool: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(input_schema(tool.fields))
    jsonschema.Draft202012Validator.check_schema(output_schema(tool.name))
    assert tool.says
    assert all(field.says for field in tool.fields)


def test_options_keep_their_types_bounds_and_choices() -> None:
    profile = input_schema(BY_NAME["profile"].fields)["properties"]
    assert (profile["steps"]["type"], profile["steps"]["minimum"]) == ("integer", 1)
    assert profile["loader"]["type"] == "boolean"
    tune = input_schema(BY_NAME["tune"].fields)["properties"]
    assert tune["goal"]["enum"] == ["throughput", "latency", "memory"]
    assert tune["only"]["type"] == "array"


def test_words_are_joined_to_their_options_and_the_script_stands_behind_the_dashes(root: Root) -> None:
    given = {
        "steps": 5,
        "loader": True,
        "no_trace": False,
        "script": "train.py",
        "arguments": ["--json", "-m"],
    }
    words = BY_NAME["profile"].words(given, root, "/opt/python")
    assert words == [
        *("profile", "--json", "--python=/opt/python", "--steps=5", "--loader"),
        *("--", "train.py", "--json", "-m"),
    ]


def test_a_module_inside_is_run_as_one(root: Root) -> None:
    words = BY_NAME["profile"].words({"module": "package.train"}, root, None)
    assert words == ["profile", "--json", "--module", "--", "package.train"]


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    plan=st.text(max_size=20),
    arguments=st.lists(st.text(max_size=12) | st.sampled_from(["--python=/bin/sh", "--", "-m", "--json"])),
)
def test_no_value_becomes_an_option(root: Root, plan: str, arguments: list[str]) -> None:
    tool = BY_NAME["profile"]
    try:
        words = tool.words({"script": "train.py", "arguments": arguments, "plan": plan}, root, None)
    except CallerMistake:  # a zero byte, or a path that leads outside
        return
    context = tool.click_command.make_context("flatout profile", words[1:])
    assert context.params["words"] == ("train.py", *arguments)
    assert context.params["plan"] == plan
    assert context.params["python"] is None
    assert context.params["as_module"] is False


def test_a_tuning_without_leave_writes_its_plan_into_our_own_folder(root: Root) -> None:
    agents = Agents(root, allowed=frozenset(), python=None, most_bytes=1000)
    given = agents._completed(BY_NAME["tune"], {"script": "train.py"}, "stamp")
    words = BY_NAME["tune"].words(given, root, None)
    assert "--plan=.flatout/plans/stamp.toml" in words
    assert (root.folder / ".flatout/plans").is_dir()
    assert "plan" not in agents._completed(BY_NAME["batch"], {"script": "train.py"}, "stamp")


def test_what_a_tool_needs_follows_from_what_it_is_asked_for() -> None:
    asked: list[tuple[str, dict[str, Any], str | None]] = [
        ("stop", {"dry_run": True}, None),
        ("stop", {}, "stop"),
        ("power", {}, None),
        ("power", {"job": "1", "measure": True}, None),
        ("power", {"job": "1"}, "power"),
        ("power", {"measure": True, "apply": True}, "power"),
        ("tune", {}, None),
        ("tune", {"plan": "x.toml"}, "plan"),
        ("run", {}, "run"),
        ("skills_install", {}, "skills"),
    ]
    for name, given_, needed in asked:
        assert BY_NAME[name].needs(given_) == needed, (name, given_)
    assert {needed for _, _, needed in asked} - {None} == set(PERMISSIONS)


def test_a_tool_never_offers_what_its_command_has_not() -> None:
    for tool in TOOLS:
        known = {
            name
            for parameter in tool.click_command.params
            if isinstance(parameter, click.Option)
            for name in parameter.opts
        }
        assert {field.option for field in tool.fields if field.option} <= known
