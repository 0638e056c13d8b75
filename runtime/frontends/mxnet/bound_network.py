"""The bound network: a symbol with shapes, on a store's parameters and devices.

It is planned when it is bound; what it takes to train, to evaluate or to go phase by phase is made
when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from runtime.backends.device.arrays import HOST, Device, beside, copy, on_host, typed
from runtime.engine.devices import ArrayPlacement, device_of, gpus
from runtime.engine.optimizer_step import OptimizerStep, overflowing, scale_feeds
from runtime.engine.phases import Phases, head_gradients
from runtime.engine.session import Session
from runtime.frontends.mxnet.parameter_store import Store
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from symgraph.core.batch_layout import WHOLE, Layout, Split
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError
from symgraph.core.types import Array, TensorType
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed


@dataclass(frozen=True)
class BindRequest:
    """What a network is bound for: see Module.bind. requests: parameter or input -> grad_req."""

    feeds: Mapping[str, Feed]
    labels: frozenset[str]
    requests: Mapping[str, str]
    trains: bool


class BoundNetwork:
    """A symbol for one set of shapes, on a store's parameters."""

    def __init__(self, symbol: Symbol, wanted: BindRequest, options: Options, store: Store) -> None:
        self.symbol, self.wanted, self.store = symbol, wanted, store
        fed = [name for name in wanted.requests if name in wanted.feeds]
        if fed and options.micro_batches > 1:
            raise ConfigError(
                f"the gradient of input {fed[0]!r} is wanted, which needs micro_batches=1"
            )
        wrt = [n for n in symbol.list_arguments() if wanted.requests.get(n, "null") != "null"]
        self._dtypes = {n: str(a.dtype) for n, a in store.arrays.items()}
        self.plan = plan(
            symbol,
            wanted.feeds,
            replace(options, update=wanted.trains),
            wrt=wrt if wanted.trains else (),
            heads=wanted.trains,
            dtypes=self._dtypes,
        )
        self._homes, self._gpus = ArrayPlacement(self.plan, options.default), gpus(self.plan)
        self.input_grads: dict[str, Array] = {}
        self._last: Session | Phases | None = None
        self._ready = False  # a training forward has run whose gradients were not computed yet
        self._trainer: tuple[Optimizer, Session] | None = None
        self._finisher: tuple[Optimizer, dict[int, OptimizerStep]] | None = None

    @cached_property
    def evaluation(self) -> Plan:
        """The plan without backward phase, at the same places."""
        if not self.wanted.trains:
            return self.plan
        options = self.plan.evaluating()
        return plan(self.symbol, self.wanted.feeds, options, dtypes=self._dtypes)

    @cached_property
    def _reader(self) -> Session:
        made, store = self.evaluation, self.store
        return Session(
            made, store.cluster, store.of(made), resources=store.shared, keep_outputs=True
        )

    @cached_property
    def _phases(self) -> Phases:
        store = self.store
        return Phases(self.plan, store.cluster, store.of(self.plan), store.shared)

    # -- running -----------------------------------------------------------------------------

    def train(self, feeds: Mapping[str, Array]) -> None:
        """One training step: all phases as one pipeline."""
        if not self.wanted.trains:
            raise RunError(
                "the module is not bound for training: bind it with for_training=True and "
                "force_rebind=True"
            )
        added = [name for name, request in self.wanted.requests.items() if request == "add"]
        if added:
            raise ConfigError(
                f"grad_req of {added[0]!r} is 'add', but a whole step has gradients of its own; "
                "call forward_backward and update"
            )
        if self.plan.heads:
            name = self.symbol.list_outputs()[next(iter(self.plan.heads))]
            raise GraphError(
                f"output {name!r} is no loss, so fit cannot train it: put it through BlockGrad or "
                "MakeLoss, or call forward and backward with head gradients"
            )
        store, session = self.store, self._session()
        session.steps = store.steps
        with store.cores.limit():
            session.step(self._values(feeds, train=True))
        store.steps += 1
        store.take_back(session.updaters)
        self._last = store.ran = session

    def _session(self) -> Session:
        """The training session; a new one if the store has another optimizer now."""
        optimizer = self.store.wanted_optimizer
        if self._trainer is None or self._trainer[0] is not optimizer:
            session = Session(
                self.plan,
                self.store.cluster,
                self.store.of(self.plan),
                optimizer=optimizer,
                seed=self.store.seed,
                resources=self.store.shared,
                keep_outputs=True,
            )
            self._trainer = optimizer, session
        self.store.lend(self._trainer[1].updaters)
        return self._trainer[1]

    def _updaters(self) -> dict[int, OptimizerStep]:
        """The ends of training steps that go phase by phase, likewise."""
        optimizer = self.store.wanted_optimizer
        if self._finisher is None or self._finisher[0] is not optimizer:
            ranks = self.store.cluster.ranks
            self._finisher = (
                optimizer,
                {r: OptimizerStep(self.plan, optimizer, None) for r in ranks},
            )
        self.store.lend(self._finisher[1])
        return self._finisher[1]

    def forward(self, feeds: Mapping[str, Array], train: bool) -> None:
        """Compute the outputs, in training with what `backward` needs."""
        self._ready = False
        if not train:
            with self.store.cores.limit():
                self._reader.step(self._values(feeds, train=False))
            self._reader.collect()
            self._last = self.store.ran = self._reader
            return
        store = self.store
        values = self._values(feeds, train=True)
        with store.cores.limit():
            self._phases.forward(values, seed=store.seed, step=store.steps)
        store.steps += 1
        self._last = store.ran = self._phases
        self._ready = True

    def outputs(self) -> list[Array]:
        """The outputs of the last pass, for the whole batch."""
        if self._last is None:
            raise RunError("there are no outputs yet: call forward")
        return self._last.outputs()

    def gradients_of(self, inputs: Sequence[str]) -> list[Array]:
        """The gradients of those inputs that have any, in this order."""
        if not self.input_grads:
            raise RunError("no gradients of inputs: bind with inputs_need_grad, call backward")
        return [self.input_grads[name] for name in inputs if name in self.input_grads]

    def backward(self, out_grads: Sequence[Array | None]) -> None:
        """Compute gradients, into the store or `input_grads`; out_grads: one an output.

        What is kept is without the loss scale.
        """
        self._require_phases("backward")
        if not self._ready:
            raise RunError("backward needs a forward(is_train=True) before it")
        heads = self._heads(out_grads)
        self._ready = False
        with self.store.cores.limit():
            self._phases.backward(heads)
        self._catch_up()
        written, scale = set[str](), self.store.loss_scale
        for variable in self.plan.grads:
            shard = self.plan.shards.get(variable)
            name = shard.parameter if shard else variable
            here, whole = self._home(name), self._gradient(name)
            part, gradient = shard.of(whole) if shard else whole, self._phases.gradient(variable)
            with here.use(), overflowing(self.plan):
                if self.wanted.requests[name] == "write" and name not in written:
                    whole[...] = 0
                    written.add(name)
                own = on_host(gradient) if here.is_host else gradient
                part += own / scale.value if scale.scales else own
        for gpu in self._gpus:
            gpu.finish()

    def update(self) -> None:
        """Change the parameters by the gradients in the store."""
        self._require_phases("update")
        self._catch_up()
        updaters, scale = self._updaters(), self.store.loss_scale
        for variable in self.plan.grads:
            shard = self.plan.shards.get(variable)
            own, name = self._phases.gradient(variable), shard.parameter if shard else variable
            whole = self._gradient(name)
            with device_of(self.plan, variable).use(), overflowing(self.plan):
                if shard and shard.copy:
                    own[...] = 0  # copies' gradients are summed: the first one has it all
                else:
                    copy(own, shard.of(whole) if shard else whole)
                    if scale.scales:
                        own *= scale.value
        self._phases.update(updaters)
        self.store.take_back(updaters)

    def _catch_up(self) -> None:
        """Wait for what the caller does to gradients on GPUs."""
        for gpu in self._gpus:
            gpu.catch_up()

    def _require_phases(self, what: str) -> None:
        if not isinstance(self._last, Phases):
            raise RunError(f"{what} needs a forward(is_train=True) before it")
        if self.store.ran is not self._last:
            raise RunError(
                f"{what}: another network of the same parameters has run since this one's forward; "
                "call forward again"
            )

    def _home(self, name: str) -> Device:
        """Where the gradient of a parameter or an input is kept."""
        return HOST if name in self.wanted.feeds else self._homes.of(name)

    def _gradient(self, name: str) -> Array:
        """The whole gradient of a parameter or an input; zeros if there is none yet."""
        if name in self.wanted.feeds:
            shape, dtype = self.wanted.feeds[name].type
            return self.input_grads.setdefault(name, np.zeros(shape, dtype))
        if name not in self.store.grads:
            like = self.store.arrays[name]
            self.store.grads |= self._homes.zeros({name: TensorType(like.shape, like.dtype.name)})
        return self.store.grads[name]

    def _values(self, given: Mapping[str, Array], *, train: bool) -> dict[str, Array]:
        """The fed arrays in their types; labels that are not given are 0 unless it trains."""
        values = {}
        for name, feed in self.wanted.feeds.items():
            shape, dtype = feed.type
            if name in given:
                values[name] = np.asarray(on_host(given[name]), dtype, order="C")
                if values[name].shape != shape:
                    found = values[name].shape
                    raise ShapeError(f"{name!r} has shape {found}, but {shape} is bound")
            elif name in self.wanted.labels and not train:
                values[name] = np.zeros(shape, dtype)
        return values

    def _heads(self, out_grads: Sequence[Array | None]) -> dict[str, Array]:
        """What the backward phase is fed: head gradients times the loss scale, and the scale."""
        if self.plan.heads and len(self.plan.sizes) > 1:
            raise ConfigError("backward with head gradients needs micro_batches=1")
        scale = self.store.loss_scale
        heads = head_gradients(self.plan, self.symbol.list_outputs(), out_grads)
        if scale.scales:
            heads = {name: _times(head, scale.value) for name, head in heads.items()}
        return heads | scale_feeds(self.plan, scale)

    def samples(
        self, first: str, labels: Sequence[str]
    ) -> tuple[int, list[Layout], dict[str, int | None]]:
        """The batch's size, by its input `first`; where it lies in each output, and in labels.

        None: in no axis, of labels that the network does not read.
        """
        made, feeds = self.plan, self.wanted.feeds
        (shape, _), axis = feeds[first]
        layouts = [made.layouts[v] for v in made.outputs]
        types = made.partition.graph.types_of(made.outputs)
        for i, type_ in enumerate(types):  # what mixes samples may have them along its rows
            if layouts[i] is WHOLE and type_.shape[:1] == (shape[axis],):
                layouts[i] = Split(0)
        return shape[axis], layouts, {n: feeds[n].axis if n in feeds else None for n in labels}


def _times(head: Array, scale: float) -> Array:
    """A head gradient times the loss scale, where it lies; it is done when this returns."""
    with beside(head):
        return typed(head * scale, str(head.dtype))
