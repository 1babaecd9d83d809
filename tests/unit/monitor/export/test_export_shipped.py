"""What comes with the exporter: manifests that ask for little, a unit that systemd accepts, true pages."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.monitor.export.address import DEFAULT_LISTEN, DEFAULT_PORT
from flatout.monitor.export.catalogue import SPECS
from flatout.monitor.export.dcgm import DCGM_METRICS
from flatout.monitor.export.labels import LabelLimits
from flatout.monitor.export.shipped import shipped_files
from flatout.records.version import __version__

ROOT = Path(__file__).parents[4]
FILES = {name: data.decode() for name, data in shipped_files().items()}


def manifests(name: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILES[f"kubernetes/{name}"])}


def test_the_pods_have_no_rights_that_they_do_not_need() -> None:
    pod = manifests("flatout-export.yaml")["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any(key.startswith("nvidia.com/") for key in container["resources"]["limits"]), "takes no GPU"
    assert "--token-file" in container["args"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_kubernetes_own_models_know_every_field_of_the_pods() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="the extra launch is not installed")
    template = manifests("flatout-export.yaml")["DaemonSet"]["spec"]["template"]
    # A field that they do not know would not come back.
    back = models.IoK8sApiCoreV1PodTemplateSpec.from_dict(template).to_dict()
    assert leaves(template).items() <= leaves(back).items()
    misspelt = {"spec": {**template["spec"], "hostPId": True}}
    assert (
        not leaves(misspelt).items()
        <= leaves(models.IoK8sApiCoreV1PodTemplateSpec.from_dict(misspelt).to_dict()).items()
    )


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {at: one for key, each in pairs for at, one in leaves(each, f"{path}/{key}").items()}
    return {path: value}


def test_manifests_select_and_name_the_same_things() -> None:
    found = {**manifests("flatout-export.yaml"), **manifests("flatout-monitors.yaml")}
    assert set(found) == {
        *("ServiceAccount", "DaemonSet", "Service", "NetworkPolicy", "ServiceMonitor", "PodMonitor"),
    }
    own = found["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        found["DaemonSet"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        found["PodMonitor"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= own
    wanted = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    assert wanted <= found["Service"]["metadata"]["labels"].items()
    [port] = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port == {"name": "metrics", "containerPort": DEFAULT_PORT}
    for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        [endpoint] = found[kind]["spec"][key]
        assert endpoint["port"] == "metrics"
        assert endpoint["authorization"]["credentials"]["name"] == "flatout-export-token"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "flatout-export.service"
    unit.write_text(FILES["systemd/flatout-export.service"].replace("/opt/flatout/bin/flatout", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Unknown" not in done.stderr, done.stderr


def test_the_default_address_is_the_same_everywhere() -> None:
    assert DEFAULT_LISTEN in FILES["systemd/flatout-export.service"]
    assert DEFAULT_LISTEN in FILES["prometheus/prometheus.yml"]
    assert f"default: {DEFAULT_LISTEN}" in (ROOT / "docs/commands.md").read_text()
    assert f"flatout-export:{__version__}" in FILES["kubernetes/flatout-export.yaml"]


def test_dashboards_leave_the_choice_of_a_prometheus_to_the_reader() -> None:
    names = [name for name in FILES if name.startswith("grafana/")]
    assert len(names) == 3
    for name in names:
        document = json.loads(FILES[name])
        assert document["templating"]["list"][0]["type"] == "datasource"
        ids = [panel["id"] for panel in document["panels"]]
        assert len(ids) == len(set(ids)) > 10
        for panel in document["panels"]:
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_the_page_lists_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(flatout_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", _page(), re.MULTILINE)
    listed = {name: (kind, labels, text) for name, kind, labels, text in rows}
    expected = {
        spec.name: (spec.kind, ", ".join((*spec.labels, *spec.facts)), spec.help)
        for specs in SPECS.values()
        for spec in specs
    }
    assert listed == expected


def test_the_page_lists_every_alert_and_every_name_of_dcgm() -> None:
    rules = yaml.safe_load(FILES["prometheus/flatout.rules.yml"])
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Flatout\w+)`", _page())) == alerts
    assert set(re.findall(r"`(DCGM_FI_(?:DEV|PROF)_\w+)`", _page())) == {
        one.spec.name for one in DCGM_METRICS
    }


def test_the_page_names_the_limits_as_they_are() -> None:
    limits = LabelLimits()
    assert f"{limits.jobs} jobs" in _page()
    assert f"{limits.ranks} ranks" in _page()
    assert f"{limits.reasons} reasons" in _page()


def _page() -> str:
    return (ROOT / "docs/export.md").read_text()
