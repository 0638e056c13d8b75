"""The types of values in config files: their checks, and their schemas for editors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from symgraph.core.context import Context
from symgraph.core.params import LARGEST
from symgraph.core.units import parse_bytes
from symgraph.core.yaml_lines import shown


def _device(text: str) -> str:
    return repr(Context.parse(text))  # its ConfigError is a ValueError, as pydantic wants


def _devices(value: object) -> object:
    if isinstance(value, (list, tuple)) and value and all(isinstance(d, str) for d in value):
        return tuple(_device(d) for d in value)
    if isinstance(value, str):
        return _device(value)
    raise ValueError(f"expected a device, or a list of devices, one per shard, got {shown(value)}")


def _pieces(value: object) -> object:
    text = str(value) if type(value) is int else value
    if isinstance(text, str) and (text == "devices" or PIECES.fullmatch(text)):
        return text
    raise ValueError(
        f'expected a number, a proportion such as "3:2", or devices, got {shown(value)}'
    )


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _auto_or_count(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"expected auto or a whole number of at least 1, got {shown(value)}")


def _auto_or_positive(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, (int, float)) and value is not True and 0 < value < math.inf:
        return float(value)
    raise ValueError(f"expected auto or a number above 0, got {shown(value)}")


def _steps(value: object) -> object:
    if value is None or value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"expected null, auto or a number of time steps, got {shown(value)}")


def _stages(value: object) -> object:
    if isinstance(value, str) and value in RECOMPUTE:
        return value
    if isinstance(value, (list, tuple)) and all(type(s) is int and s >= 0 for s in value):
        return tuple(sorted(set(value)))
    raise ValueError(
        f"expected {', '.join(RECOMPUTE)} or a list of stages, such as [0, 1], got {shown(value)}"
    )


def _bytes(value: object) -> object:
    if value is None or (type(value) is int and value >= 1):
        return value
    if isinstance(value, str):
        return parse_bytes(value)
    raise ValueError(f"expected bytes, such as 4GiB, got {shown(value)}")


def _as(*shapes: str | Mapping[str, Any]) -> WithJsonSchema:
    """Describe, for editors, a value of one of several types, or with one of several schemas."""
    parts = [{"type": s} if isinstance(s, str) else dict(s) for s in shapes]
    return WithJsonSchema({"anyOf": parts})


RECOMPUTE = ("none", "all", "auto")
PIECES = re.compile(r"[1-9]\d*(:[1-9]\d*)*")
AUTO = {"const": "auto"}
COUNT = {"type": "integer", "minimum": 1}
Pieces = Annotated[str, PlainValidator(_pieces), _as("string", COUNT)]
Device = Annotated[str, AfterValidator(_device)]
Devices = Annotated[
    str | tuple[str, ...],
    PlainValidator(_devices),
    PlainSerializer(_listed),
    _as("string", {"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
ListOf = Field(strict=False, min_length=1)  # a YAML list becomes a tuple
AutoOrCount = Annotated[int | str, PlainValidator(_auto_or_count), _as(COUNT, AUTO)]
AutoOrPositive = Annotated[
    float | str,
    PlainValidator(_auto_or_positive),
    _as({"type": "number", "exclusiveMinimum": 0}, AUTO),
]
TimeSteps = Annotated[int | str | None, PlainValidator(_steps), _as(COUNT, AUTO, "null")]
Stages = Annotated[
    str | tuple[int, ...],
    PlainValidator(_stages),
    PlainSerializer(_listed),
    _as({"enum": RECOMPUTE}, {"type": "array", "items": {"type": "integer", "minimum": 0}}),
]
Bytes = Annotated[int | None, PlainValidator(_bytes), _as(COUNT, "string", "null")]
