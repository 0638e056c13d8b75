"""The config file: read, overridden from the command line, and checked.

`load_config` reports one mistake at a time, the first of the file, in one line that names the file,
the line, the key and what would be right. A mistake on the command line names the override.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from symgraph import lr_scheduler
from symgraph.config_keys import Config, DataConfig, PipelineConfig, Section, TrainConfig, sections
from symgraph.context import Context
from symgraph.corpus import CORPORA
from symgraph.errors import ConfigError, nearest
from symgraph.optimizer import OPTIMIZERS
from symgraph.yaml_lines import Document, KeyPath, Problem, read, shown


def load_config(
    path: str, overrides: Sequence[str] = (), *, schedules: Collection[str] | None = None
) -> Config:
    """Read a config file, apply `key.path=value` overrides, and check it.

    `schedules` are the known names of pipeline.schedule; None accepts any. Raises ConfigError, one
    line, for the first mistake; keys that are missing come after mistakes in those that are there.
    """
    document = read(path)
    for override in overrides:
        document.override(override)
    problems = list(document.problems)
    missing: list[Problem] = []
    config = None
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        for details in error.errors():
            found = missing if details["type"] in MISSING else problems
            found.append(_problem(document, details))
    contradictions = [*_contradictions(document.data, schedules), *_schedule_mistake(config)]
    problems += [Problem(document.place(at), at, message) for at, message in contradictions]
    if problems or missing:
        raise ConfigError(str(min(problems or missing, key=lambda p: p.place[:2])))
    assert config is not None
    return config


def _locate(location: tuple[int | str, ...]) -> tuple[KeyPath, type[Section] | None]:
    """Key path of a pydantic location, and the section that holds its last key.

    Pydantic puts the kind of a section between the keys wherever it had to choose by kind.
    """
    path: KeyPath = ()
    holder: type[Section] | None = None
    inside: type[Section] | None = Config
    steps = iter(location)
    for key in steps:
        path, holder, inside = (*path, key), inside, None
        info = holder.model_fields.get(str(key)) if holder else None
        choices = sections(info.annotation) if info else {}
        kind = next(steps, None) if len(choices) > 1 else ""
        inside = choices.get(str(kind))
    return path, holder


SCHEDULE_FILES = (".csv", ".txt")
MISSING = ("missing", "union_tag_not_found")

# pydantic's name of a mistake -> what to say; the value follows
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


def _problem(document: Document, error: ErrorDetails) -> Problem:
    path, section = _locate(error["loc"])
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        description = section and section.model_fields[str(path[-1])].description
        message = "required key is missing" + (f": {description}" if description else "")
    elif kind == "extra_forbidden":
        message = _unknown_key(str(path[-1]), section)
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


def _unknown_key(key: str, section: type[Section] | None) -> str:
    if key in Config.model_fields:
        return "unknown key here: it belongs at the top level"
    for name, info in Config.model_fields.items():
        for owner in sections(info.annotation).values():
            if key in owner.model_fields and owner is not section:
                return f"unknown key here: it belongs under {name!r}"
    return f"unknown key: {nearest(key, section.model_fields if section else ())}"


def _contradictions(
    data: Mapping[str, Any], schedules: Collection[str] | None
) -> Iterator[tuple[KeyPath, str]]:
    """Mistakes that no key's type shows. Works on unchecked data: other keys may be wrong too."""
    corpus, pipeline, train = (
        section if isinstance(section := data.get(name), dict) else {}
        for name in ("data", "pipeline", "train")
    )
    yield from _data_mistakes(corpus)
    yield from _device_mistakes(data)
    yield from _schedule_name_mistakes(pipeline, schedules)
    yield from _unknown(("train", "optimizer"), train, OPTIMIZERS)
    parts, batch = pipeline.get("micro_batches"), corpus.get("batch_size")
    if isinstance(parts, int) and isinstance(batch, int) and 1 <= batch < parts:
        yield ("pipeline", "micro_batches"), f"{parts} is more than data.batch_size ({batch})"
    rule = train.get("optimizer", TrainConfig.model_fields["optimizer"].default)
    known = isinstance(rule, str) and rule in OPTIMIZERS
    if known and train.get("momentum") and not hasattr(OPTIMIZERS[rule], "momentum"):
        yield ("train", "momentum"), f"optimizer {rule} has no momentum; remove this key"


def _schedule_name_mistakes(
    pipeline: Mapping[str, Any], schedules: Collection[str] | None
) -> Iterator[tuple[KeyPath, str]]:
    name = pipeline.get("schedule", PipelineConfig.model_fields["schedule"].default)
    if isinstance(name, str) and name.endswith(SCHEDULE_FILES):
        if not Path(name).is_file():
            yield ("pipeline", "schedule"), f"no such file: {name}"
    elif name != "auto":
        yield from _unknown(("pipeline", "schedule"), pipeline, schedules)
    if pipeline.get("order") is not None and name != "gpipe":
        yield ("pipeline", "order"), f"is for the schedule gpipe, not for {name}; remove this key"


def _unknown(
    path: tuple[str, str], section: Mapping[str, Any], known: Collection[str] | None
) -> Iterator[tuple[KeyPath, str]]:
    name = section.get(path[1])
    if known is not None and isinstance(name, str) and name not in known:
        yield path, f"unknown value {name!r}: {nearest(name, known)}"


def _data_mistakes(corpus: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    yield from _unknown(("data", "kind"), corpus, CORPORA)
    kind = corpus.get("kind", DataConfig.model_fields["kind"].default)
    if kind == "text" and corpus.get("path") is None:
        yield ("data", "kind"), "kind text needs the key data.path: a UTF-8 file to train on"
    for key in ("path", "valid_path"):
        path = corpus.get(key)
        if not isinstance(path, str):
            continue
        if kind == "stdlib_text":
            yield ("data", key), "kind stdlib_text reads no file; did you mean kind: text?"
        elif not Path(path).is_file():
            what = "is a folder, not a file" if Path(path).is_dir() else "no such file"
            yield ("data", key), f"{what}: {path}"


def _device_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """A device listed twice, or a group on a device that is not listed."""
    listed = data.get("devices", list(Config.model_fields["devices"].default))
    groups = data.get("group2ctx")
    devices = [_device(text) for text in listed] if isinstance(listed, list) else []
    known = [device for device in devices if device is not None]
    for i, device in enumerate(devices):
        if device is not None and device in devices[:i]:
            yield ("devices", i), f"{device} is listed twice"
    if not known or len(set(known)) < len(devices):  # wrong themselves, and reported as that
        return
    for group, text in groups.items() if isinstance(groups, dict) else ():
        device = _device(text)
        if device is not None and device not in known:
            message = f"group {group!r} is on {device}, which is not in devices"
            yield ("group2ctx", group), f"{message}: {nearest(device, known)}"


def _device(text: object) -> str | None:
    """The device in its usual spelling; None if it is none."""
    try:
        return repr(Context.parse(text)) if isinstance(text, str) else None
    except ConfigError:
        return None


def _schedule_mistake(config: Config | None) -> Iterator[tuple[KeyPath, str]]:
    """Arguments of train.lr_schedule that are right one by one but make no schedule."""
    if config is None or config.train.lr_schedule is None:
        return
    try:
        arguments = config.train.lr_schedule.model_dump()
        lr_scheduler.create(**arguments, base_lr=config.train.base_rate)
    except ConfigError as error:
        yield ("train", "lr_schedule"), str(error)
