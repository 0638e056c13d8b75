"""Connectionist temporal classification (Graves et al. 2006): CTCLoss.

With S = 2 L + 1 states, the labels with a blank before, between and behind them, `paths` holds

    log of the probability of all paths to state s at time t    (T, N, S)

by the forward recursion; the gradient's backward recursion holds that of all paths from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from symgraph.core import params
from symgraph.core.batch_layout import WHOLE, Layouts, Split, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import FULL, Call, Env, Names, Partial, Shapes, register
from symgraph.core.shapes import expect
from symgraph.core.types import Array, Types
from symgraph.ops.elementwise import DTypes
from symgraph.ops.index import checked
from symgraph.ops.loss import labelled
from symgraph.ops.softmax import log_softmax

NEVER = -1e30  # the logarithm of a probability of 0, such that sums with it stay numbers
CTC = {
    "use_data_lengths": params.boolean(False),
    "use_label_lengths": params.boolean(False),
    "blank_label": params.choice("first", "last", default="first"),
}


def ctc_inputs(a: Attrs) -> Names:
    lengths = [n for n in ("data_lengths", "label_lengths") if a[f"use_{n}"]]
    return ("data", "label", *lengths)


def ctc_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, label, *lengths = ins
    loss, paths = outs
    data = expect(site, "data", data, (0, 0, 0), "(time, batch, classes)")
    label = expect(site, "label", label, (0, 0), "(batch, labels)")
    assert data is not None
    assert label is not None
    count: Partial = data[1:2]
    for name, known in (("label", label[:1]), *(("lengths", s) for s in (*lengths, loss))):
        count = expect(site, name, known, count, f"(data of shape {data})")
    assert count is not None
    if 0 < data[0] < label[1]:
        site.fail(f"{label[1]} labels are more than the {data[0]} time steps of data {data}")
    data, label = (data[0], *count, data[2]), (*count, label[1])
    states = 2 * label[1] + 1 if label[1] else 0
    paths = expect(site, "paths", paths, (*data[:2], states))
    return [data, label, *[count] * len(lengths)], [count, paths]


def ctc_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    """Data of floats; unknown dtypes of labels and lengths default to it."""
    data, label = labelled(site, ins[:2])
    return [data, label, *(d or data for d in ins[2:])], [str(data)]


class Words(NamedTuple):
    """The labels of a batch, as states."""

    #: The class of each state, (N, S).
    classes: Array
    #: Whether a path may come to a state from the second one before it, (N, S).
    skips: Array
    #: The number of states of each sample: 1 + twice its labels, (N,).
    states: Array
    #: The number of time steps of each sample, (N,).
    steps: Array
    #: Whether there is a path at all, (N,).
    possible: Array


def words_of(xp: Any, a: Attrs, data: Array, label: Array, lengths: Sequence[Array]) -> Words:
    """Return the states; IndexError for a label or length out of range."""
    given = dict(zip(ctc_inputs(a)[2:], lengths, strict=True))
    (time, count, classes), longest = data.shape, label.shape[1]
    first = a["blank_label"] == "first"
    blank = 0 if first else classes - 1
    if "label_lengths" in given:
        sizes = checked(given["label_lengths"], longest + 1, "label length")
    else:
        sizes = (xp.cumsum(label == (0 if first else -1), axis=1) == 0).sum(1)
    inside = xp.arange(longest) < sizes[:, None]
    named = xp.where(inside, label, blank)
    named = checked(named, classes, "label")
    found = xp.full((count, 2 * longest + 1), blank, "int64")
    found[:, 1::2] = named
    skips = xp.zeros(found.shape, bool)
    skips[:, 3::2] = found[:, 3::2] != found[:, 1:-2:2]
    repeats = (inside[:, 1:] & (named[:, 1:] == named[:, :-1])).sum(1)
    steps = xp.full(count, time, "int64")
    if "data_lengths" in given:
        steps = checked(given["data_lengths"], time + 1, "data length").astype("int64")
    return Words(found, skips, 2 * sizes + 1, steps, sizes + repeats <= steps)


def behind(xp: Any, paths: Array, by: int) -> Array:
    """Return the values of the states `by` places before each state."""
    moved: Array = xp.full(paths.shape, NEVER, paths.dtype)
    moved[:, by:] = paths[:, :-by]
    return moved


def together(xp: Any, paths: Array, skips: Array) -> Array:
    """Return the sum of the probabilities of staying, coming one state on, and skipping one."""
    skipped = xp.where(skips, behind(xp, paths, 2), NEVER)
    joined: Array = xp.logaddexp(xp.logaddexp(paths, behind(xp, paths, 1)), skipped)
    return joined


def last_states(xp: Any, words: Words, dtype: Any) -> Array:
    """Return 0 for the states in which a path may end, and NEVER for the others."""
    at = xp.arange(words.classes.shape[1])
    ends = (at < words.states[:, None]) & (at >= words.states[:, None] - 2)
    found: Array = xp.where(ends, 0.0, NEVER).astype(dtype)
    return found


def ctc(env: Env, a: Attrs, data: Array, label: Array, *lengths: Array) -> tuple[Array, Array]:
    xp, words = env.xp, words_of(env.xp, a, data, label, lengths)
    paths = xp.empty((*data.shape[:2], words.classes.shape[1]), data.dtype)
    before = xp.full(paths.shape[1:], NEVER, data.dtype)
    before[:, 0] = 0.0
    # Ahead of the first step a path is in the first blank; `together` lets it go on from there.
    for t in range(len(data)):
        now = together(xp, before, words.skips if t else xp.zeros_like(words.skips))
        now += xp.take_along_axis(log_softmax(xp, data[t], 1), words.classes, 1)
        before = xp.where((t < words.steps)[:, None], now, before)
        paths[t] = before
    ends = before + last_states(xp, words, data.dtype)
    top = ends.max(1)
    loss = -(top + xp.log(xp.exp(ends - top[:, None]).sum(1)))
    return xp.where(words.possible, loss, 0.0).astype(data.dtype), paths


def ctc_grad(c: Call) -> Sequence[Ref | None]:
    rest = [None] * (len(c.x) - 1)
    if c.g[0] is None:
        return [None, *rest]
    return [apply("_ctc_loss_grad", c.gy, *c.y, *c.x, **c.attrs), *rest]


def ctc_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    data, *others = ins
    if data is WHOLE and all(layout is WHOLE for layout in others):
        return [WHOLE] * len(outs)
    if not isinstance(data, Split) or data.axis != 1:
        refuse_mixing(site, f"needs data whose batch lies along axis 1, not {data}")
    if any(layout != Split(0, data.outer, data.inner) for layout in others):
        refuse_mixing(site, "has data, labels and lengths whose batch lies differently")
    return [Split(0, data.outer, data.inner), data]


register(
    name="CTCLoss",
    inputs=ctc_inputs,
    outputs=("output0", "paths"),  # as MXNet, which has no name for it
    visible=1,
    shape=ctc_shape,
    compute=ctc,
    grad=ctc_grad,
    flops=lambda attrs, ins, outs: 4 * ins[0].size + 12 * outs[1].size,
    dtype=ctc_dtype,
    batch=ctc_batch,
    params=CTC,
    precision=FULL,
    full_inputs=("label", "data_lengths", "label_lengths"),
    reads_on_host=True,
    aliases=("ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"),
    doc="-log of the probability of the labels under connectionist temporal classification: (N,). "
    "data (T, N, C): activations, of which softmax is taken; label (N, L): classes, with L at "
    "most T. The blank is class 0 (blank_label first; labels end at a 0) or C - 1 (last; they "
    "end at a -1). use_data_lengths, use_label_lengths: two more inputs (N,), the numbers of time "
    "steps and of labels that count. A sample with too few steps for its labels has loss and "
    "gradient 0, as in MXNet; a label or length out of range raises IndexError. MXNet CTCLoss.",
)


def from_here(xp: Any, words: Words, data: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield, from the last time step back, t, log softmax, and the paths from each state on."""
    ends = last_states(xp, words, data.dtype)
    onward, skips = ends, xp.flip(words.skips, 1)
    # Turned round, a state is reached from the second one before it if its own twin skips.
    skips = xp.concatenate([xp.zeros_like(skips[:, :2]), skips[:, :-2]], 1)
    for t in reversed(range(len(data))):
        prob = log_softmax(xp, data[t], 1)
        here = xp.where((t >= words.steps - 1)[:, None], ends, onward)
        yield t, prob, here
        turned = xp.flip(here + xp.take_along_axis(prob, words.classes, 1), 1)
        onward = xp.flip(together(xp, turned, skips), 1)


def ctc_gradient(
    env: Env, a: Attrs, g: Array, loss: Array, paths: Array, data: Array, *label: Array
) -> Array:
    """Return softmax less the share of paths that are in a class, for the steps that count."""
    xp, words = env.xp, words_of(env.xp, a, data, label[0], label[1:])
    grad: Array = xp.empty_like(data)
    samples = xp.arange(data.shape[1])
    for t, prob, here in from_here(xp, words, data):
        shares = xp.exp(xp.minimum(paths[t] + here + loss[:, None], 0.0))
        rows = xp.exp(prob)
        rows[samples, words.classes[:, 0]] -= shares[:, ::2].sum(1)
        for state in range(1, words.classes.shape[1], 2):
            rows[samples, words.classes[:, state]] -= shares[:, state]
        counts = words.possible & (t < words.steps)
        grad[t] = xp.where(counts[:, None], rows * g[:, None], 0.0)
    return grad


def gradient_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    known, made = ctc_shape(site, ins[3:], ins[1:3])
    return [made[0], *made, *known], [known[0]]


def gradient_dtype(site: Site, ins: Sequence[str | None]) -> DTypes:
    known, (dtype,) = ctc_dtype(site, ins[3:])
    return [dtype] * 3 + known, [dtype]


def gradient_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    ctc_batch(site, ins[3:], in_types[3:], outs)
    return [ins[3]]


register(
    name="_ctc_loss_grad",
    inputs=lambda attrs: ("grad", "loss", "paths", *ctc_inputs(attrs)),
    shape=gradient_shape,
    compute=ctc_gradient,
    flops=lambda attrs, ins, outs: 4 * outs[0].size + 16 * ins[2].size,
    dtype=gradient_dtype,
    batch=gradient_batch,
    params=CTC,
    precision=FULL,
    full_inputs=("label", "data_lengths", "label_lengths"),
    reads_on_host=True,
    doc="Gradient of CTCLoss's data.",
)
