"""Constraints on placements in config files: `partition.constraints` and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from symgraph.core.context import Context
from symgraph.core.errors import nearest
from symgraph.core.yaml_lines import shown

LISTS = ("together", "apart")
AXES = ("samples", "classes", "none")


def _checked(value: object) -> dict[str, Any]:
    """Return a constraint in its long form: its kind, with a list of names or a map of names."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(f"expected one constraint, such as {{apart: [a, b]}}, got {shown(value)}")
    ((kind, given),) = value.items()
    if kind in LISTS:
        if not _names(given) or len(given) < 2:
            raise ValueError(f"{kind}: expected two names or more, such as [a, b]; {_got(given)}")
        return {kind: list(given)}
    if kind not in VALUES:
        raise ValueError(f"unknown constraint {kind!r}: {nearest(str(kind), [*LISTS, *VALUES])}")
    if kind == "at_most" and type(given) is int:
        given = {"*": given}
    check, example = VALUES[kind]
    if not isinstance(given, Mapping) or not given or not _names([*given]):
        raise ValueError(f"{kind}: expected names with values, such as {example}; {_got(given)}")
    try:
        return {kind: {name: check(of) for name, of in given.items()}}
    except ValueError as error:
        raise ValueError(f"{kind}: {error}") from None


def _got(value: object) -> str:
    return f"got {shown(value)}"


def _names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(n, str) and n for n in value)


def _device(value: object) -> str:
    if isinstance(value, str):
        return repr(Context.parse(value))
    raise ValueError(f"expected a device, such as cpu(0), {_got(value)}")


def _devices(value: object) -> list[str]:
    listed = value if isinstance(value, (list, tuple)) and value else [value]
    return [_device(device) for device in listed]


def _count(value: object) -> int:
    if type(value) is int and value >= 1:
        return value
    raise ValueError(f"expected a number of devices, {_got(value)}")


def _name(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError(f"expected a name, {_got(value)}")


def _axis(value: object) -> str:
    if isinstance(value, str) and value in AXES:
        return value
    raise ValueError(f"expected {', '.join(AXES)}, {_got(value)}")


# Kind -> the check of its values, and an example.
VALUES = {
    "pin": (_device, "{embed: cpu(0)}"),
    "not_on": (_devices, "{embed: cpu(0)}"),
    "at_most": (_count, '{"layer*": 2}'),
    "same": (_name, "{layer2: layer0}"),
    "split": (_axis, "{decode: classes}"),
}
SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        **{kind: {"type": "array", "items": {"type": "string"}, "minItems": 2} for kind in LISTS},
        **{kind: {"type": "object", "minProperties": 1} for kind in VALUES},
        "at_most": {"type": ["integer", "object"]},
    },
}
Constraint = Annotated[dict[str, Any], PlainValidator(_checked), WithJsonSchema(SCHEMA)]


def constrained_devices(constraint: Mapping[str, Any]) -> Iterator[str]:
    """Yield the devices that a constraint names."""
    for kind in ("pin", "not_on"):
        for given in constraint.get(kind, {}).values():
            yield from [given] if isinstance(given, str) else given
