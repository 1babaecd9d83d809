"""What the server is asked: names that our exporter has, values that stay values."""

import re

import pytest

from flatout.monitor.export.catalogue import SPECS
from flatout.monitor.fleet.answers import Row
from flatout.monitor.fleet.job_queries import job_questions, ranks_of
from flatout.monitor.fleet.machines import host_of, machine_names
from flatout.monitor.fleet.queries import Questions
from flatout.monitor.fleet.reading import _matcher
from flatout.monitor.fleet.selecting import Scope, any_of, quoted, selector
from flatout.records.errors import CallerMistake
from tests.fakes.planted_fleet import planted

EVERY = (*("first", "history", "of_mixed", "of_idle", "of_down", "of_limited"),)


def all_queries(*, dcgm: bool = True) -> list[str]:
    questions = Questions(over_s=3600.0, scope=Scope(where=('cluster="a"',), uuids=("GPU-1",), dcgm=dcgm))
    asked = [text for name in EVERY for text in getattr(questions, name)().values()]
    asked += questions.of_gone(("a:1",)).values()
    asked += job_questions(questions.scope, 3600.0, 30).values()
    return [*asked, ranks_of(questions.scope, "run-1")]


def test_every_metric_that_is_asked_for_is_one_that_our_exporter_has() -> None:
    told = {spec.name for group in SPECS.values() for spec in group}
    named = {name for text in all_queries() for name in re.findall(r"\bflatout_\w+", text)}
    patterns = {text for text in all_queries() if "__name__" in text}
    for text in patterns:
        for prefix, names in re.findall(r"(flatout_\w+_)\(([\w|]+)\)", text):
            named |= {prefix + name for name in names.split("|")}
    named -= {"flatout_device_", "flatout_job_"}
    assert len(named) > 25
    assert named <= told, named - told


def test_the_made_up_fleet_speaks_as_our_exporter_does() -> None:
    told = {spec.name for group in SPECS.values() for spec in group}
    made_up = {name for name, _, _ in planted(1.7e9) if name.startswith("flatout_")}
    assert made_up <= told, made_up - told


def test_dcgm_exporters_names_are_asked_for_only_where_they_are_needed() -> None:
    with_them, without = "".join(all_queries()), "".join(all_queries(dcgm=False))
    assert "DCGM_FI_PROF_SM_ACTIVE" in with_them
    # At first, to know whether there are any.
    assert "DCGM_FI_PROF_SM_ACTIVE" not in without


def test_where_restricts_every_query_except_whether_targets_answer() -> None:
    for text in all_queries():
        assert 'cluster="a"' in text or text.startswith("min by (instance) (up{"), text
        bare = [
            name for name in re.findall(r"(?:flatout_|DCGM_)\w+(?![\w{(|])", text) if "__name__" not in text
        ]
        assert not bare, f"{bare} of everybody in {text}"


@pytest.mark.parametrize("value", ['a"} or vector(1)', "a\\", "a\nb", 'x",y="z'])
def test_a_value_cannot_leave_its_quotes(value: str) -> None:
    text = selector("up", host=value)
    inside = re.fullmatch(r'up\{host="((?:[^"\\\n]|\\.)*)"\}', text)
    assert inside is not None
    assert inside[1].encode().decode("unicode_escape") == value


def test_a_device_with_a_pattern_for_a_name_means_itself() -> None:
    assert any_of(["GPU-.*", "a|b"]) == quoted(r"GPU\-\.\*|a\|b")


def test_matchers_as_people_write_them() -> None:
    assert _matcher("cluster=a") == 'cluster="a"'
    assert _matcher('cluster="a"') == 'cluster="a"'
    assert _matcher("instance=~rack1-.*") == 'instance=~"rack1-.*"'
    assert _matcher('x!=a"b') == 'x!="a\\"b"'
    for wrong in ("cluster", "1x=a", "=a", "a b=c"):
        with pytest.raises(CallerMistake, match="--where"):
            _matcher(wrong)


def test_hosts_of_instances() -> None:
    told = {
        "a:1": "a",
        "[::1]:9": "::1",
        "10.0.0.1:19838": "10.0.0.1",
        "plain": "plain",
        "fe80::1": "fe80::1",
    }
    assert {instance: host_of(instance) for instance in told} == told


def test_exporters_on_one_machine_share_its_name_and_machines_that_share_a_name_do_not() -> None:
    nodes = [
        Row("flatout_node_info", {"instance": instance, "host": host}, 1.0)
        for instance, host in {
            "10.0.0.1:1": "gpu",
            "10.0.0.1:2": "gpu",
            "10.0.0.2:1": "pod",
            "10.0.0.3:1": "pod",
        }.items()
    ]
    names = machine_names([row.label("instance") for row in nodes], nodes, [])
    assert names["10.0.0.1:1"] == names["10.0.0.1:2"] == "gpu"
    assert names["10.0.0.2:1"] == "pod (10.0.0.2:1)"
    assert names["10.0.0.3:1"] == "pod (10.0.0.3:1)"
