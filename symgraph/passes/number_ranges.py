"""The numbers that variables must have where operators read them as ids, lengths or regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from symgraph.core.graph import Graph, Node
from symgraph.core.params import Attrs
from symgraph.core.registry import find
from symgraph.core.types import TensorType, Types

Number = int | tuple[int, ...]  # a tuple: one for each column, along the last axis
Range = tuple[Number, Number]  # the smallest number, and the one above the largest
ByName = Mapping[str, TensorType]  # the types of inputs
Rule = Callable[[Attrs, ByName], Range]
# Operators whose outputs have the numbers of their inputs.
MOVERS = frozenset(
    (
        "BlockGrad",
        "Cast",
        "Concat",
        "Crop",
        "Flatten",
        "Reshape",
        "SliceChannel",
        "SwapAxis",
        "broadcast_axis",
        "broadcast_to",
        "expand_dims",
        "identity",
        "repeat",
        "reverse",
        "slice",
        "slice_axis",
        "squeeze",
        "stack",
        "tile",
        "transpose",
    )
)


def lengths(attrs: Attrs, types: ByName) -> Range:
    """Return 1 to the length of the time axis."""
    steps = attrs["size"] if "size" in attrs else types["data"].shape[attrs["axis"]]
    return 1, steps + 1


def ctc_labels(attrs: Attrs, types: ByName) -> Range:
    """Return the classes without the blank, which ends the labels."""
    classes = types["data"].shape[2]
    first = attrs["blank_label"] == "first"
    return (min(1, classes - 1), classes) if first else (0, max(1, classes - 1))


def regions(attrs: Attrs, types: ByName) -> Range:
    """Return an image's number, and corners in its first and in its second half."""
    images, _, *size = types["data"].shape
    down, across = (max(2, math.floor(n / attrs["spatial_scale"])) for n in size)
    half = across // 2, down // 2
    return (0, 0, 0, *half), (images, *half, across, down)


def boxes(attrs: Attrs, types: ByName) -> Range:
    """Return a class besides the background, and the corners of the whole image."""
    others = types["label"].shape[2] - 5
    classes = max(1, types["cls_pred"].shape[1] - 1)
    return (0, 0, 0, 1, 1, *(0,) * others), (classes, 1, 1, 2, 2, *(2,) * others)


CTC: dict[str, Rule] = {
    "label": ctc_labels,
    "data_lengths": lambda attrs, types: (1, types["data"].shape[0] + 1),
    "label_lengths": lambda attrs, types: (1, types["label"].shape[1] + 1),
}
SEQUENCE: dict[str, Rule] = {"sequence_length": lengths}
# Operator -> input -> the range.
RANGES: dict[str, dict[str, Rule]] = {
    "CTCLoss": CTC,
    "_ctc_loss_grad": CTC,
    "LogisticRegressionOutput": {"label": lambda attrs, types: (0, 2)},
    "ROIPooling": {"rois": regions},
    "_roi_pooling_grad": {"rois": regions},
    "_sequence_last_grad": SEQUENCE,
    "SequenceLast": SEQUENCE,
    "SequenceMask": SEQUENCE,
    "SequenceReverse": SEQUENCE,
    "_contrib_MultiBoxTarget": {"label": boxes},
}

# Operator -> the usual range of its first input, where no other call makes it. Masks are 0 or 1;
# logarithms, roots and powers need positive numbers: their kernels take many times as long on NaN.
USUAL: dict[str, Range] = {
    "where": (0, 2),
    **dict.fromkeys(("log", "log10", "log2", "rsqrt", "sqrt"), (1, 10)),
    **dict.fromkeys(("_digamma", "_power", "arccosh", "broadcast_power"), (1, 10)),
}


def number_ranges(graph: Graph, names: Sequence[str]) -> dict[str, Range]:
    """Return the ranges of those variables that are read as ids, classes, lengths or regions."""
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in graph:
        for position, value in enumerate(node.inputs):
            readers.setdefault(value.node, []).append((node, position))
    found = {}
    for name in names:
        columns = graph[name].types[0].shape[-1:]
        ranges, seen, ahead = [], {name}, [name]
        while ahead:
            for node, position in readers.get(ahead.pop(), ()):
                types = graph.types_of(node.inputs)
                limits = number_range(node, position, types) or usual_range(node, position)
                if limits is not None:
                    if np.shape(limits[0]) in ((), columns):
                        ranges.append(limits)
                elif node.op in MOVERS and node.name not in seen:
                    seen.add(node.name)
                    ahead.append(node.name)
        if ranges:
            lows, highs = zip(*ranges, strict=True)
            found[name] = reduce(np.maximum, lows), reduce(np.minimum, highs)
    return found


def number_range(node: Node, position: int, types: Types) -> Range | None:
    """Return the range of the numbers that an input must have; None: it may have any.

    Args:
        node: a call of an operator.
        position: which of its inputs.
        types: the types of all of them.
    """
    op, attrs = find(node.op), node.attrs
    names = op.input_names(attrs)  # a hidden input has no name among those of the users
    name = names[position] if position < len(names) else ""
    if count := op.ids.get(name):
        return 0, count(attrs, types)
    if rule := RANGES.get(node.op, {}).get(name):
        return rule(attrs, dict(zip(names, types, strict=False)))
    if node.op.startswith("_sample_"):
        return 1, 2 if name == "p" else 10  # parameters of distributions are above 0
    return None


def usual_range(node: Node, position: int) -> Range | None:
    """Return the range of the numbers that an input usually has, if it may have any; None: all."""
    if position:
        return None
    fraction = node.op == "_power_scalar" and node.attrs["scalar"] % 1 != 0
    return (1, 10) if fraction else USUAL.get(node.op)
