"""The `model:` and `loss:` of a config: functions, and files of other frameworks.

A model file may also stand in place of the config file: `opened` makes a config of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from symgraph.app.named_files import find_files
from symgraph.core.reading import read_text
from symgraph.core.yaml_check import Section
from symgraph.core.yaml_lines import Document, Place, read
from symgraph.frontend.model import FUNCTION
from symgraph.interchange.onnx.plans import read_plan

ONNX, PT2, JSON = ".onnx", ".pt2", ".json"
MODEL_FILES = (ONNX, PT2, JSON)
BATCH_SIZE = "batch_size"  # an override of a model file: data.batch_size


class LossConfig(Section):
    """A loss that is added to the network, for networks that end in predictions."""

    kind: Literal[
        "softmax_cross_entropy", "logistic", "squared_error", "absolute_error", "output"
    ] = "softmax_cross_entropy"
    """softmax_cross_entropy (SoftmaxOutput), logistic (LogisticRegressionOutput), squared_error
    (LinearRegressionOutput), absolute_error (MAERegressionOutput), or output: the output is the
    loss itself, a value for each sample or their mean (MakeLoss). A softmax or sigmoid that the
    network ends in becomes part of the loss. Gradients are MXNet's, divided by the batch size."""
    output: str | None = None
    """Name of the output that the loss is computed from; null: the only one."""
    label: str = "label"
    """Name of the input that the output is compared with."""
    axis: Literal[1, -1] = -1
    """For softmax_cross_entropy: the axis of the classes, 1 for images of labels; the labels have
    the other axes."""
    ignore_label: int | None = None
    """For softmax_cross_entropy: the class of labels that do not count, such as those of padding;
    null: all count."""


def model_path(text: str) -> str:
    """Return the text; ValueError unless it names a function or a model file."""
    if not text.lower().endswith(MODEL_FILES) and not FUNCTION.fullmatch(text):
        raise ValueError(
            "expected package.module:function, file.py:function or a model file "
            f"({', '.join(MODEL_FILES)}), got {text!r}"
        )
    return text


def is_model_file(path: object) -> bool:
    """Return whether a `model:` names a file, and not a function."""
    return isinstance(path, str) and path.lower().endswith(MODEL_FILES)


def opened(path: str, overrides: Sequence[str]) -> Document:
    """Read a config file, or make the config of a model file, and apply overrides.

    A plan in an ONNX file is taken if nothing else places the network. Where nothing at all places
    a model file that is read in place of a config, the planner does. Of such a file, `batch_size=8`
    stands for `data.batch_size=8`.
    """
    of_model = _is_model(path)
    document = Document({"model": path}, {(): Place(False, 1, path)}) if of_model else read(path)
    for override in overrides:
        short = of_model and override.partition("=")[0].strip() == BATCH_SIZE
        document.override(f"data.{override.strip()}" if short else override)
    data = document.data
    if not of_model:
        find_files(document, Path(path).parent)
    _take_plan(data)
    if (
        of_model
        and not data.get("group2ctx")
        and isinstance(data.setdefault("partition", {}), dict)
    ):
        data["partition"].setdefault("strategy", "auto")
    return document


def _is_model(path: str) -> bool:
    """Return whether a file is a model; JSON may also be a config, which has no nodes."""
    if not path.lower().endswith(JSON):
        return is_model_file(path)
    try:
        data = json.loads(read_text(path, "config file"))
    except (ValueError, RecursionError):
        return False  # the reader of configs says what is wrong
    return isinstance(data, dict) and "nodes" in data


def _take_plan(data: dict[str, Any]) -> None:
    """Take the devices and groups of the plan in an ONNX file, if nothing else places it."""
    path, partition = data.get("model"), data.get("partition")
    chosen = isinstance(partition, dict) and partition.get("strategy") is not None
    if not isinstance(path, str) or not path.lower().endswith(ONNX) or chosen:
        return
    if "group2ctx" in data or not Path(path).is_file() or (plan := read_plan(path)) is None:
        return
    data["group2ctx"] = {
        group: [*map(repr, place)] if isinstance(place, tuple) else repr(place)
        for group, place in plan.group2ctx.items()
    }
    data.setdefault("devices", [*map(repr, plan.devices)])
