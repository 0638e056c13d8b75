"""YAML documents that know where each key was written: file and line, or override.

Every message about a config file names a line; data from `yaml.safe_load` has no lines. Departures
from PyYAML: a key given twice is a mistake, 1e-3 is a number (PyYAML wants 1.0e-3), 1:30 is text
(to PyYAML it is 90), `no`, 010 and dates are mistakes without quotes, and keys are always text,
exactly as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

import yaml

from symgraph.core.errors import ConfigError
from symgraph.core.reading import read_text

KeyPath = tuple[str | int, ...]
MERGE = "tag:yaml.org,2002:merge"
TEXT = "tag:yaml.org,2002:str"
MAX_ALIASED = 100_000  # the most values that aliases may add
# booleans, octal numbers and dates of YAML 1.1, which are something else in YAML 1.2
UNCLEAR = re.compile(r"(?i:yes|no|on|off)|[-+]?0[0-7_]+|\d{4}-\d.*")


class Place(NamedTuple):
    """The place of a key in a file or an override; sorts in reading order, overrides last."""

    #: Whether it is an override and not a line of the file.
    is_override: bool
    #: The line of the file from 1, or the position of the override.
    number: int
    #: The place in words.
    text: str

    def __str__(self) -> str:
        return self.text


class Problem(NamedTuple):
    """A mistake in a document; problems sort by place."""

    #: The place of the key.
    place: Place
    path: KeyPath
    message: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (str(self.place), dotted(self.path), self.message)))


def dotted(path: KeyPath) -> str:
    """Format a key path as users write it.

    >>> dotted(("devices", 1)), dotted(("train", "seed"))
    ('devices[1]', 'train.seed')
    """
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in path).removeprefix(".")


def shown(value: object) -> str:
    """Format a value for an error message, in YAML's words and at most 60 characters."""
    if isinstance(value, dict | list):
        return ("a" if value else "an empty") + (" mapping" if isinstance(value, dict) else " list")
    words: dict[object, str] = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass
class Document:
    """A YAML file after overrides."""

    data: dict[str, Any] = field(default_factory=dict)
    #: Where every key was written.
    places: dict[KeyPath, Place] = field(default_factory=dict)
    #: The mistakes so far.
    problems: list[Problem] = field(default_factory=list)
    #: The number of overrides so far.
    overrides: int = 0

    def place(self, path: KeyPath) -> Place:
        """Return the place of a key, or of the nearest key around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def override(self, text: str) -> None:
        """Set one key from `key.path=value`, a YAML value; missing parents are created."""
        self.overrides += 1
        place = Place(True, self.overrides, f"override {text!r}")
        name, equals, value = text.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            raise ConfigError(f"{place}: expected key.path=value, such as train.steps=100")
        target = self.data
        for depth, key in enumerate(path[:-1], start=1):
            around = path[:depth]
            if target.get(key) is None:
                target[key] = {}
                self.places[around] = place
            target = target[key]
            if not isinstance(target, dict):
                raise ConfigError(
                    f"{place}: {dotted(around)} is {shown(target)} ({self.place(around)}),"
                    " not a mapping that could hold further keys"
                )
        self.places = {at: p for at, p in self.places.items() if at[: len(path)] != path}
        target[path[-1]] = _parse(value, place.text, lambda line: place, self, path)


def read(path: str, what: str = "config") -> Document:
    """Read a YAML file whose top level is a mapping; ConfigError if it cannot be read or parsed.

    Args:
        path: The file.
        what: The kind of file, for the error if it is missing.
    """
    text = read_text(path, f"{what} file")
    document = Document(places={(): Place(False, 1, f"{path}:1")})
    data = _parse(text, path, lambda line: Place(False, line, f"{path}:{line}"), document, ())
    if not isinstance(data, dict):
        what = "an empty file" if data is None else shown(data)
        raise ConfigError(f"{document.place(())}: expected keys and values, got {what}")
    document.data = data
    return document


def written(data: Mapping[str, Any], *, width: int = 100) -> str:
    """Write data as YAML that `read` reads back; innermost lists and mappings are on one line."""
    return yaml.dump(data, None, _Dumper, sort_keys=False, default_flow_style=None, width=width)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with YAML 1.2's numbers such as 1e-3, and 1:30 as text."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> str:
        """Return the tag of a node without one."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return TEXT if tag.endswith((":int", ":float")) and ":" in value else tag

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace `<<` by the keys that it merges, each once: repeats would multiply."""
        super().flatten_mapping(node)
        by_key = {
            key.value if isinstance(key, yaml.ScalarNode) else id(key): (key, value)
            for key, value in node.value
        }
        node.value = list(by_key.values())


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, with quotes around text that `_Loader` would take for a number."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
    )


def _parse(
    text: str, name: str, place_of: Callable[[int], Place], document: Document, path: KeyPath
) -> Any:
    """Parse the value in `text`; add its places and mistakes to the document, below `path`."""
    document.places[path] = place_of(1)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        builder = _Builder(loader, place_of, document, len(text) + MAX_ALIASED)
        return None if node is None else builder.build(node, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = place_of(mark.line + 1 if mark else 1)
        said = ", ".join(s for s in (error.context, error.problem) if s)
        raise ConfigError(f"{where}: not valid YAML: {said}") from None
    except yaml.reader.ReaderError as error:
        where = place_of(text[: error.position].count("\n") + 1)
        raise ConfigError(
            f"{where}: not valid YAML: character {chr(error.character)!r} is not allowed"
        ) from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply, or an alias that holds itself") from None


class _Builder:
    """Turns YAML nodes into data and records the place of each."""

    def __init__(
        self, loader: _Loader, place_of: Callable[[int], Place], document: Document, limit: int
    ) -> None:
        self.loader, self.place_of, self.document = loader, place_of, document
        self.values_left = limit

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.values_left -= 1
        if self.values_left < 0:
            message = f"aliases add more than {MAX_ALIASED:,} values to the file"
            raise ConfigError(f"{self._place(node)}: {message}")
        self.document.places.setdefault(path, self._place(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        try:
            value = self.loader.construct_object(node)
        except ValueError as error:  # such as a date with month 13
            self._problem(node, path, f"{node.value!r} is not a valid value: {error}")
            return None
        except (KeyError, AttributeError):  # PyYAML's own, of a tag such as !!bool
            self._problem(node, path, f"{node.value!r} is not a valid value of its tag")
            return None
        if not isinstance(value, str) and UNCLEAR.fullmatch(node.value):
            known = "a date" if isinstance(value, date) else shown(value)
            message = f"{node.value!r} is {known} to some readers of YAML and not to others"
            remedy = "" if isinstance(value, date) else f", or write {known}"
            self._problem(node, path, f"{message}: put text in quotes{remedy}")
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._find_duplicates(node, path)
        self.loader.flatten_mapping(node)
        data = {}
        for key, value in node.value:  # merged keys come first, so a mapping's own keys win
            if not isinstance(key, yaml.ScalarNode):
                self._problem(key, path, "a key must be text, not a list or a mapping")
                continue
            below = (*path, key.value)
            self.document.places[below] = self._place(key)
            data[key.value] = self.build(value, below)
        return data

    def _find_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first: dict[str, Place] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if key.value in first:
                message = f"this key is given twice, first at {first[key.value]}"
                self._problem(key, (*path, key.value), message)
            first.setdefault(key.value, self._place(key))

    def _place(self, node: yaml.Node) -> Place:
        return self.place_of(node.start_mark.line + 1)

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.document.problems.append(Problem(self._place(node), path, message))
