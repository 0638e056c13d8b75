"""The config file: read, overridden from the command line, and checked.

`load_config` reports one mistake at a time, the first of the file, in one line that names the file,
the line, the key and what would be right. A mistake on the command line names the override.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from symgraph.app.config_keys import Config, DataConfig, PipelineConfig, TrainConfig
from symgraph.app.corpus import CORPORA
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.yaml_check import checked
from symgraph.core.yaml_lines import KeyPath, read
from symgraph.frontend import lr_scheduler
from symgraph.frontend.optimizer import OPTIMIZERS


def load_config(
    path: str,
    overrides: Sequence[str] = (),
    *,
    schedules: Collection[str] | None = None,
    strategies: Collection[str] | None = None,
) -> Config:
    """Read a config file, apply `key.path=value` overrides, and check it.

    `schedules` and `strategies` are the known names of pipeline.schedule and partition.strategy,
    besides auto; None accepts any. Raises ConfigError, one line, for the first mistake; keys that
    are missing come after mistakes in those that are there.
    """
    document = read(path)
    for override in overrides:
        document.override(override)
    document.data.setdefault("devices", _named_devices(document.data))
    return checked(
        document,
        Config,
        lambda config: (
            *_contradictions(document.data, schedules, strategies),
            *_schedule_mistake(config),
        ),
    )


def _named_devices(data: Mapping[str, Any]) -> list[str]:
    """The devices that group2ctx names, in order, or the default."""
    named = sorted({device for _, device in _placed(data)})
    return [repr(device) for device in named] or list(Config.model_fields["devices"].default)


def _placed(data: Mapping[str, Any]) -> Iterator[tuple[str, Context]]:
    """Each group of group2ctx with each device that it is on."""
    groups = data.get("group2ctx")
    for group, given in groups.items() if isinstance(groups, dict) else ():
        for text in given if isinstance(given, list) else [given]:
            if (device := _device(text)) is not None:
                yield group, device


SCHEDULE_FILES = (".csv", ".txt")


def _contradictions(
    data: Mapping[str, Any],
    schedules: Collection[str] | None,
    strategies: Collection[str] | None,
) -> Iterator[tuple[KeyPath, str]]:
    """Mistakes that no key's type shows. Works on unchecked data: other keys may be wrong too."""
    corpus, pipeline, train, partition = (
        section if isinstance(section := data.get(name), dict) else {}
        for name in ("data", "pipeline", "train", "partition")
    )
    yield from _data_mistakes(corpus)
    yield from _device_mistakes(data)
    if isinstance(machine := data.get("machine"), str):
        yield from _file_mistakes(("machine",), machine)
    if isinstance(costs := partition.get("costs"), str):
        if machine is not None:
            message = "are this machine's, but `machine` describes another; leave out one of them"
            yield ("partition", "costs"), message
        yield from _file_mistakes(("partition", "costs"), costs)
    yield from _schedule_name_mistakes(pipeline, schedules)
    if partition.get("strategy") != "auto":
        yield from _unknown(("partition", "strategy"), partition, strategies)
    yield from _unknown(("train", "optimizer"), train, OPTIMIZERS)
    if train.get("precision", "float32") != "float32" and train.get("dtype") == "float64":
        message = f"{train['precision']} needs weights of float32, not train.dtype: float64"
        yield ("train", "precision"), message
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
    lengths = [key for key in ("sequence_length", "buckets") if corpus.get(key) is not None]
    if len(lengths) == 2:
        yield ("data", "buckets"), "stands beside data.sequence_length; remove one of them"
    if not lengths and corpus:
        yield ("data",), "sequence_length or buckets is missing: the time steps to unroll for"
    if "buckets" not in lengths and corpus.get("batches_per_step", 1) != 1:
        yield ("data", "batches_per_step"), "is for data.buckets; remove this key"
    for key in ("path", "valid_path"):
        path = corpus.get(key)
        if not isinstance(path, str):
            continue
        if kind == "stdlib_text":
            yield ("data", key), "kind stdlib_text reads no file; did you mean kind: text?"
        else:
            yield from _file_mistakes(("data", key), path)


def _file_mistakes(at: KeyPath, path: str) -> Iterator[tuple[KeyPath, str]]:
    if Path(path).is_dir():
        yield at, f"is a folder, not a file: {path}"
    elif not Path(path).exists():
        yield at, f"no such file: {path}"


def _device_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """A device listed twice, or a group on a device that is not listed."""
    listed = data["devices"]
    devices = [_device(text) for text in listed] if isinstance(listed, list) else []
    known = [device for device in devices if device is not None]
    for i, device in enumerate(devices):
        if device is not None and device in devices[:i]:
            yield ("devices", i), f"{device} is listed twice"
    if not known or len(set(known)) < len(devices):  # wrong themselves, and reported as that
        return
    for group, device in _placed(data):
        if device not in known:
            message = f"group {group!r} is on {device}, which is not in devices"
            yield ("group2ctx", group), f"{message}: {nearest(repr(device), map(repr, known))}"


def _device(text: object) -> Context | None:
    """None if it is no device."""
    try:
        return Context.parse(text) if isinstance(text, str) else None
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
