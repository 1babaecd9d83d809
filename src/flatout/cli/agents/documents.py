"""What each tool answers with, as a schema: read off the records that the commands print.

Two levels deep: who wants to know all has docs/json.md, and a list of tools should be short. Any value may be
null, where it could not be read, and nothing but `schema` must be there: long answers are cut.
"""

from typing import Any

import msgspec

_DEPTH = 2


def output_schema(tool: str) -> dict[str, Any]:
    """The JSON schema of the document of a tool."""
    properties: dict[str, Any] = {}
    for record in _records(tool):
        whole = msgspec.json.schema(record)
        found = _resolved(whole, whole.get("$defs", {}))
        for name, schema in found.get("properties", {}).items():
            properties[name] = _shallow(schema, whole.get("$defs", {}), _DEPTH)
    name = {"skills_install": "skills"}.get(tool, tool)
    other = {"report": "report|runs", "fit": "fit|load"}.get(tool, name)
    schema_name = {"type": "string", "pattern": f"^flatout\\.({other})/[0-9]+$"}
    cut = {"type": "object", "description": "What was left out of a long answer, and where all of it is."}
    return {
        "type": "object",
        "properties": {"schema": schema_name, **properties, "cut": cut},
        "required": ["schema"],
    }


def _records(tool: str) -> tuple[Any, ...]:
    from flatout.records.batch import BatchSizes
    from flatout.records.check import CheckReport
    from flatout.records.energy import CostReport
    from flatout.records.fit import Fit
    from flatout.records.limits import Limits
    from flatout.records.load import Load
    from flatout.records.machine import DoctorReport
    from flatout.records.power import PowerHere, PowerSweep
    from flatout.records.processes import ProcessesHere
    from flatout.records.profile import Profile
    from flatout.records.running import JobRun
    from flatout.records.stopping import Stops
    from flatout.records.trace import TraceSummary
    from flatout.records.tuning import Tuning
    from flatout.records.watching import Frame

    return {
        "doctor": (DoctorReport,),
        "limits": (Limits,),
        "check": (CheckReport,),
        "profile": (Profile,),
        "trace": (TraceSummary,),
        "tune": (Tuning,),
        "fit": (Fit, Load),
        "batch": (BatchSizes,),
        "ps": (ProcessesHere,),
        "watch": (Frame,),
        "cost": (CostReport,),
        "power": (PowerHere, PowerSweep),
        "stop": (Stops,),
        "run": (JobRun,),
    }.get(tool, ())


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _shallow(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> dict[str, Any]:
    """The same to a certain depth, with every value nullable."""
    schema = _resolved(schema, definitions)
    kinds = [_resolved(one, definitions) for one in schema.get("anyOf", [])]
    if kinds:
        real = [one for one in kinds if one.get("type") != "null"]
        return _shallow(real[0], definitions, depth) if len(real) == 1 else {}
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {}
    found: dict[str, Any] = {"type": [kind, "null"]}
    if depth and kind == "array" and isinstance(schema.get("items"), dict):
        found["items"] = _shallow(schema["items"], definitions, depth - 1)
    if depth and kind == "object" and schema.get("properties"):
        found["properties"] = {
            name: _shallow(one, definitions, depth - 1) for name, one in schema["properties"].items()
        }
    return found
