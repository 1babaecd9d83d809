"""Panels of a Grafana dashboard, from a title, a unit and queries."""

import json
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def timeseries(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> dict[str, Any]:
    """Lines over time; queries are PromQL and the legend."""
    return _panel("timeseries", title, unit, queries, **more)


def stat(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> dict[str, Any]:
    """The present value, large."""
    panel = _panel("stat", title, unit, queries, **{"width": 4, "height": 4, **more})
    panel["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value_and_name" if len(queries) > 1 or "{{" in queries[0][1] else "auto",
        "colorMode": "value",
        "graphMode": "area",
    }
    return panel


def table(title: str, query: str, *columns: str, unit: str = "short", **more: Any) -> dict[str, Any]:
    """Rows of labels with a value."""
    panel = _panel("table", title, unit, [(query, "")], **{"width": 12, "height": 7, **more})
    panel["targets"][0] |= {"format": "table", "instant": True}
    order = {name: place for place, name in enumerate((*columns, "Value"))}
    hidden = {"Time": True, "__name__": True, "job": True}
    panel["transformations"] = [
        {"id": "organize", "options": {"indexByName": order, "excludeByName": hidden}},
    ]
    return panel


def _panel(
    kind: str,
    title: str,
    unit: str,
    queries: Any,
    *,
    width: int = 8,
    height: int = 7,
    most: float | None = None,
    text: str = "",
) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": unit, "min": 0} if unit != "none" else {"unit": "none"}
    if most is not None:
        defaults["max"] = most
    panel: dict[str, Any] = {
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(queries)
        ],
    }
    return {**panel, "description": text} if text else panel


def variable(name: str, metric: str, label: str) -> dict[str, Any]:
    """A choice among the values of a label."""
    query = f"label_values({metric}, {label})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def dashboard(uid: str, title: str, variables: list[dict[str, Any]], panels: list[dict[str, Any]]) -> str:
    """The whole document; panels flow from left to right."""
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        place = panel["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, row_height = 0, y + row_height, 0
        panel["id"] = number
        panel["gridPos"] = {"x": x, "y": y, **place}
        x += place["w"]
        row_height = max(row_height, place["h"])
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    document = {
        "uid": uid,
        "title": title,
        "tags": ["flatout", "gpu"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"
