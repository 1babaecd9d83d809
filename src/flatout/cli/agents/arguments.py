"""What a tool takes, read off its command: options become typed properties, and values become words.

Nothing here is ever put together into one string: a command gets a list of words. An option's value is joined
to its name (`--plan=x`) and everything else stands behind `--`, so that no value can become an option.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

from flatout.cli.agents.places import Root
from flatout.records.errors import CallerMistake, UnknownName

Kind = Literal["text", "path", "run", "script", "module"]

_LONGEST = 4096
_MOST = 256


@dataclasses.dataclass(frozen=True)
class Field:
    """A property of a tool: what it is called, what it may be, and where it may lead."""

    name: str
    says: str
    schema: Mapping[str, Any]
    option: str | None = None  # how the command calls it; None for what stands behind `--`
    kind: Kind = "text"
    required: bool = False

    @property
    def property_schema(self) -> dict[str, Any]:
        """For the tool's input schema."""
        return {**self.schema, "description": self.says}

    def words(self, value: Any, root: Root) -> list[str]:
        """The value as words of a command line; refused where it does not fit."""
        values = value if self.schema["type"] == "array" else [value]
        if not isinstance(values, list) or len(values) > _MOST:
            raise self._mistake(value)
        words = [self._word(one, root) for one in values]
        if self.option is None:
            return words
        if self.schema["type"] == "boolean":
            return [self.option] if value else []
        return [f"{self.option}={word}" for word in words]

    def _word(self, value: Any, root: Root) -> str:
        wanted = self.schema["items"] if self.schema["type"] == "array" else self.schema
        if not _IS[wanted["type"]](value) or value not in wanted.get("enum", [value]):
            raise self._mistake(value)
        word = str(value)
        if len(word) > _LONGEST or "\0" in word:
            raise self._mistake(word[:40])
        return word if self.kind == "text" else str(getattr(root, self.kind)(word))

    def _mistake(self, value: Any) -> CallerMistake:
        wanted = {key: value for key, value in self.schema.items() if key != "description"}
        return CallerMistake(f"{self.name}: {value!r}"[:400], expected=str(wanted), remedy=self.says)


_IS: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
}


def texts(name: str, says: str, *, kind: Kind = "text", required: bool = False) -> Field:
    """Several words that stand behind `--`."""
    schema = {"type": "array", "items": {"type": "string", "maxLength": _LONGEST}, "maxItems": _MOST}
    return Field(name, says, schema, kind=kind, required=required)


def text(name: str, says: str, *, kind: Kind = "text", required: bool = False) -> Field:
    """One word that stands behind `--`."""
    return Field(name, says, {"type": "string", "maxLength": _LONGEST}, kind=kind, required=required)


def from_options(command: click.Command, names: Sequence[str], kinds: Mapping[str, Kind]) -> list[Field]:
    """The named options of a command, as fields. One that the command does not have is a defect."""
    known = {
        option: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    return [_field(f"--{name}", known[f"--{name}"], kinds.get(name, "text")) for name in names]


def _field(option: str, parameter: click.Option, kind: Kind) -> Field:
    schema = _schema(parameter)
    if parameter.multiple:
        schema = {"type": "array", "items": schema, "maxItems": _MOST}
    name = option.removeprefix("--").replace("-", "_")
    return Field(name, _says(parameter), schema, option=option, kind=kind)


def _says(parameter: click.Option) -> str:
    text = " ".join((parameter.help or "").split())
    # click gives a sentinel for "none".
    default = parameter.default if isinstance(parameter.default, str | int | float) else None
    is_flag = parameter.is_flag or default is None
    return text if is_flag else f"{text} Default: {default}."


def _schema(parameter: click.Option) -> dict[str, Any]:
    kind = parameter.type
    if parameter.is_flag:
        return {"type": "boolean"}
    if isinstance(kind, click.Choice):
        return {"type": "string", "enum": list(kind.choices)}
    if isinstance(kind, click.IntRange | click.FloatRange):
        bounds = {"minimum": kind.min, "maximum": kind.max}
        number = "integer" if isinstance(kind, click.IntRange) else "number"
        return {"type": number} | {name: bound for name, bound in bounds.items() if bound is not None}
    if kind is click.INT or kind is click.FLOAT:
        return {"type": "integer" if kind is click.INT else "number"}
    return {"type": "string", "maxLength": _LONGEST}


def input_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {field.name: field.property_schema for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def words_for(fields: Sequence[Field], given: Mapping[str, Any], root: Root) -> list[str]:
    """Options first, then `--`, then the rest, in the order of the fields."""
    by_name = {field.name: field for field in fields}
    for name in given:
        if name not in by_name:
            raise UnknownName("argument", name[:80], by_name)
    missing = [field for field in fields if field.required and given.get(field.name) is None]
    if missing:
        raise CallerMistake(
            f"no {missing[0].name} was given", expected=missing[0].says, remedy=f"{missing[0].name}: ..."
        )
    present = [field for field in fields if given.get(field.name) is not None]
    options = [word for field in present if field.option for word in field.words(given[field.name], root)]
    rest = [word for field in present if not field.option for word in field.words(given[field.name], root)]
    return [*options, *(["--", *rest] if rest else [])]
