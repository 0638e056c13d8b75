"""The check of a YAML document against a pydantic model of its keys.

Only the first mistake of the file is reported, in one line that names the file, the line, the key
and what would be right.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, pairwise
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails

from symgraph.core.errors import ConfigError, nearest
from symgraph.core.yaml_lines import Document, KeyPath, Problem, shown


class Section(BaseModel):
    """A mapping in a config file. The docstring below a key is its help."""

    # strict: 3.0 is not a count, "5" not a number and yes not a seed
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Return the docstring below each key: its help.

        It is read from the source code, and empty where that is not installed. pydantic would read
        it at every start (`use_attribute_docstrings`).
        """
        found: dict[str, str] = {}
        for section in reversed(cls.__mro__[: cls.__mro__.index(Section)]):
            try:
                (made,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
            except OSError:  # no source code
                continue
            assert isinstance(made, ast.ClassDef)
            for key, text in pairwise(made.body):
                if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[ast.unparse(key.target)] = inspect.cleandoc(ast.literal_eval(text.value))
        return found

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        keys = handler.resolve_ref_schema(schema)["properties"]
        for key, meaning in cls.meanings().items():
            keys[key]["description"] = meaning
        return schema


S = TypeVar("S", bound=Section)
Mistakes = Iterable[tuple[KeyPath, str]]  # the key, and what is wrong with its value


def sections(annotation: object) -> dict[str, type[Section]]:
    """Return the sections that a key's type allows, by `kind` ("" where there is no choice)."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        kind = annotation.model_fields.get("kind")
        names = get_args(kind.annotation) if kind else ()
        return {name: annotation for name in names or ("",)}
    by_kind: dict[str, type[Section]] = {}
    for part in get_args(annotation):
        by_kind |= sections(part)
    return by_kind


def checked(document: Document, model: type[S], more: Callable[[S | None], Mistakes]) -> S:
    """Return the document as a model; ConfigError, one line, for the first mistake in it.

    Missing keys are reported after mistakes in the keys that are given.

    Args:
        document: The document.
        model: The model of its top level.
        more: Returns mistakes that no key's type shows; it gets None if the keys alone are wrong.
    """
    problems = list(document.problems)
    missing: list[Problem] = []
    config = None
    try:
        config = model.model_validate(document.data)
    except ValidationError as error:
        for details in error.errors():
            kind = missing if details["type"] in MISSING else problems
            kind.append(_problem(document, model, details))
    problems += [Problem(document.place(at), at, message) for at, message in more(config)]
    if problems or missing:
        raise ConfigError(str(min(problems or missing, key=lambda p: p.place[:2])))
    assert config is not None
    return config


def _locate(
    location: tuple[int | str, ...], model: type[Section]
) -> tuple[KeyPath, type[Section] | None]:
    """Return the key path of a pydantic location, and the section that holds its last key.

    Where pydantic chooses a section by its kind, it puts the kind between the keys.
    """
    path: KeyPath = ()
    holder: type[Section] | None = None
    inside: type[Section] | None = model
    steps = iter(location)
    for key in steps:
        path, holder, inside = (*path, key), inside, None
        info = holder.model_fields.get(str(key)) if holder else None
        choices = sections(info.annotation) if info else {}
        if info and choices and get_origin(info.annotation) is Mapping:  # sections by name
            path = (*path, *islice(steps, 1))
        several = len({*choices.values()}) > 1
        inside = (
            choices.get(str(next(steps, None))) if several else next(iter(choices.values()), None)
        )
    return path, holder


MISSING = ("missing", "union_tag_not_found")

# pydantic's name of a mistake -> the message; the value follows
MESSAGES = {
    "bool_type": "expected true or false",
    "dict_type": "expected keys and values",
    "finite_number": "expected a finite number",
    "float_type": "expected a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_type": "expected a whole number",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "model_attributes_type": "expected keys and values",
    "model_type": "expected keys and values",
    "string_type": "expected text",
    "too_short": "needs at least {min_length} entry",
    "tuple_type": "expected a list",
}


def _problem(document: Document, model: type[Section], error: ErrorDetails) -> Problem:
    path, section = _locate(error["loc"], model)
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        description = section and section.meanings().get(str(path[-1]))
        message = "required key is missing" + (f": {description}" if description else "")
    elif kind == "extra_forbidden":
        message = _unknown_key(str(path[-1]), section, model)
    elif kind in ("literal_error", "union_tag_invalid"):
        value = context.get("tag", value)
        path = (*path, "kind") if "tag" in context else path
        known = re.findall(r"'([^']+)'", context.get("expected_tags", context.get("expected", "")))
        message = f"unknown value {shown(value)}: {nearest(str(value), known)}"
    elif kind == "union_tag_not_found":
        path, message = (*path, "kind"), "required key is missing"
    elif kind == "value_error":
        message = str(context["error"])
    elif kind in MESSAGES:
        message = f"{MESSAGES[kind].format(**context)}, got {shown(value)}"
    else:
        message = f"{error['msg']}, got {shown(value)}"
    return Problem(document.place(path), path, message)


def _unknown_key(key: str, section: type[Section] | None, model: type[Section]) -> str:
    if key in model.model_fields:
        return "unknown key here: it belongs at the top level"
    for name, info in model.model_fields.items():
        choices = sections(info.annotation)
        kinds = [kind for kind, owner in choices.items() if key in owner.model_fields]
        if section in choices.values() and kinds:
            return f"unknown key for this kind: it belongs to kind {' or '.join(kinds)}"
        if kinds:
            return f"unknown key here: it belongs under {name!r}"
    return f"unknown key: {nearest(key, section.model_fields if section else ())}"
