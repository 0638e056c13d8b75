"""Faults for tests: a language model in which an operator or an update fails as ordered.

    model: tests.helpers.faults:build
    args: {where: b, phase: backward, how: kill, step: 2}

The groups of the model are a, b and c. `phase: update` needs `optimizer: faulty`, which is known
once this module is imported.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import symgraph.frontend.sym as sym
from symgraph.core import params
from symgraph.core.batch_layout import linear
from symgraph.core.ref import apply
from symgraph.core.registry import Call, Env, register
from symgraph.core.shapes import same
from symgraph.core.tags import lookup
from symgraph.core.types import TensorType
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.model import Model
from symgraph.frontend.optimizer import OPTIMIZERS, SGD
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

PHASES = ("forward", "backward", "update")
WAYS = ("raise", "kill")
GROUPS = ("a", "b", "c")
WIDTH = 8


def say(text: str) -> None:
    """One line in one write, so that lines of several processes do not mix."""
    os.write(1, f"{text}\n".encode())


def fail(how: str) -> NoReturn:
    """Say when, and raise, or kill this process."""
    say(f"fault at {time.time()}")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("injected")


def pass_on(env: Env, attrs: Mapping[str, Any], x: Any) -> Any:
    """The same value, unless it is time to fail."""
    if env.train and attrs["phase"] == "forward" and attrs["step"] == env.step:
        fail(attrs["how"])
    return x


def grad_of_fault(c: Call) -> Any:
    """A fault in the backward phase is one in the forward phase of the gradient's node."""
    now = "forward" if c.attrs["phase"] == "backward" else "never"
    return (apply("fault", c.gy, **{**c.attrs, "phase": now}),)


register(
    name="fault",
    inputs=("data",),
    shape=same,
    compute=pass_on,
    grad=grad_of_fault,
    batch=linear,
    params={
        "phase": params.choice("forward", "backward", "never"),
        "how": params.choice(*WAYS),
        "step": params.integer(),
    },
)


@dataclass
class FaultySGD(SGD):
    """Descent that fails at parameters with an attribute `__fault__`, such as "raise 2"."""

    def apply(
        self,
        xp: Any,
        name: str,
        weight: Any,
        grad: Any,
        state: Any,
        update_count: int,
        scale: float = 1.0,
        attrs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """See `Optimizer.apply`."""
        how, step = (lookup(attrs, "__fault__") or "never -1").split()
        if update_count == int(step) + 1:
            fail(how)
        super().apply(xp, name, weight, grad, state, update_count, scale, attrs)


OPTIMIZERS["faulty"] = FaultySGD


def build(
    batch_size: int,
    sequence_length: int,
    vocab: int,
    dtype: str = "float32",
    *,
    where: str = "",
    phase: str = "never",
    how: str = "raise",
    step: int = 0,
    width: int = WIDTH,
) -> Model:
    """A model that predicts each word from the one before; group `where` has the fault."""

    def layer(group: str) -> AttrScope:
        update = where == group and phase == "update"
        return AttrScope(ctx_group=group, **({"__fault__": f"{how} {step}"} if update else {}))

    def gate(x: Symbol, group: str) -> Symbol:
        if where != group or phase == "update":
            return x
        return sym.fault(x, phase=phase, how=how, step=step, name=f"fault_{group}")

    with layer("a"):
        embed = sym.Embedding(sym.Variable("data"), input_dim=vocab, output_dim=width, name="embed")
        x = gate(sym.Reshape(embed, shape=(-1, width), name="rows"), "a")
    with layer("b"):
        x = sym.tanh(sym.FullyConnected(x, num_hidden=width, name="hidden"), name="active")
        x = gate(x, "b")
    with layer("c"):
        scores = gate(sym.FullyConnected(x, num_hidden=vocab, name="decode"), "c")
        label = sym.Reshape(sym.Variable("label"), shape=(-1,), name="labels")
        loss = sym.SoftmaxOutput(scores, label, normalization="batch", name="softmax")
        figures = sym.nll_stats(loss, label, name="nll")
    words = TensorType((sequence_length, batch_size), "int32")
    return Model(sym.Group([loss, figures]), {n: Feed(words, 1) for n in ("data", "label")})
