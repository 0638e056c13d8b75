"""Converters of If, Loop and Scan: branches that are known, and loops that are unrolled."""

from __future__ import annotations

import numpy as np

from symgraph.interchange.onnx.converters.index import without_axis
from symgraph.interchange.onnx.converters.movement import joined, with_ones
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import Results, converts
from symgraph.interchange.values import Known, Traced, Value

MOST_ROUNDS = 10_000


@converts("If", known=(0,))
def branch(node: OnnxNode) -> Results:
    """Take the branch that is known when the file is read."""
    condition = node.known(0)
    which = "then_branch" if bool(np.asarray(condition).reshape(-1)[0]) else "else_branch"
    return node.subgraph(node.attr(which), [], which)


@converts("Loop", known=(0, 1))
def loop(node: OnnxNode) -> Results:
    """Unroll a loop whose number of rounds is known."""
    limit, condition = node.known(0), node.known(1)
    body = node.attr("body")
    rounds = MOST_ROUNDS + 1 if limit is None else int(limit.reshape(-1)[0])
    goes_on = condition is None or bool(condition.reshape(-1)[0])
    carried: list[Value] = [v for v in node.inputs[2:] if v is not None]
    number = len(carried)
    scanned: list[list[Traced]] = [[] for _ in node.outputs[number:]]
    at = 0
    while goes_on and at < rounds:
        node.require(at < MOST_ROUNDS, f"takes more than {MOST_ROUNDS} rounds")
        counter = np.array(at, np.int64)
        yes = np.array(True)
        stem = node.network.stem
        inputs = [
            Known((counter, counter), f"{stem}_round{at}"),
            Known((yes, yes), f"{stem}_goes_on{at}"),
            *carried,
        ]
        made = node.subgraph(body, inputs, f"{at}")
        node.network.stem = stem
        again, carried = made[0], made[1 : 1 + number]
        for row, value in zip(scanned, made[1 + number :], strict=False):
            row.append(with_ones(_traced(node, value), [0]))
        if not isinstance(again, Known) or not again.fixed:
            node.fail("goes on as long as a computed condition holds: its rounds are not known")
        goes_on = bool(again.arrays[0].reshape(-1)[0])
        at += 1
    node.require(all(scanned), "takes no round, but its outputs are joined")
    return [*carried, *[joined(row, 0) for row in scanned]]


def _traced(node: OnnxNode, value: Value) -> Traced:
    return node.network.constant(value) if isinstance(value, Known) else value


@converts("Scan", first=9)
def scan(node: OnnxNode) -> Results:
    """Unroll a scan over axes whose length does not go along with the batch."""
    count = node.attr("num_scan_inputs")
    states: list[Value] = [v for v in node.inputs[: len(node.inputs) - count] if v is not None]
    values = [node.tensor(i) for i in range(len(node.inputs) - count, len(node.inputs))]
    axes = [
        node.axis(a, v.rank)
        for a, v in zip(node.attr("scan_input_axes") or [0] * count, values, strict=True)
    ]
    backwards = node.attr("scan_input_directions") or [0] * count
    lengths = {v.shape[a] for v, a in zip(values, axes, strict=True)}
    node.require(len(lengths) == 1, f"scans axes of different lengths {sorted(lengths)}")
    (length,) = lengths
    node.require(0 < length <= MOST_ROUNDS, f"takes {length} rounds")
    number = len(states)
    rows: list[list[Traced]] = [[] for _ in range(len(node.outputs) - number)]
    stem = node.network.stem
    for at in range(length):
        parts = []
        for value, axis, reverse in zip(values, axes, backwards, strict=True):
            i = length - 1 - at if reverse else at
            parts.append(without_axis(value.sliced(axis, i, i + 1), axis))
        made = node.subgraph(node.attr("body"), [*states, *parts], f"{at}")
        node.network.stem = stem
        states = made[:number]
        for row, result in zip(rows, made[number:], strict=True):
            row.append(_traced(node, result))
    out_axes = node.attr("scan_output_axes") or [0] * len(rows)
    turned = node.attr("scan_output_directions") or [0] * len(rows)
    outputs = []
    for row, axis, reverse in zip(rows, out_axes, turned, strict=True):
        at = node.axis(axis, row[0].rank + 1)
        ordered = row[::-1] if reverse else row
        outputs.append(joined([with_ones(v, [at]) for v in ordered], at))
    return [*states, *outputs]
