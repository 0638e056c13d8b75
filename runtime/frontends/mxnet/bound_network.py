"""The bound network: a symbol with shapes, on a store's parameters and devices.

It is planned when it is bound; what it takes to train, to evaluate or to go phase by phase is made
when it is first asked for. Executors and modules run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from runtime.backends.device.arrays import HOST, Device, beside, copy, on_host, typed
from runtime.engine.devices import ArrayPlacement, device_of, gpus
from runtime.engine.optimizer_step import OptimizerStep, overflowing, scale_feeds
from runtime.engine.phases import Phases, head_gradients, split_phases
from runtime.engine.session import Session
from runtime.frontends.mxnet.parameter_store import ParameterStore
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.schedule.program import Schedule
from symgraph.core.batch_layout import WHOLE, Layout, Split
from symgraph.core.errors import ConfigError, GraphError, RunError, ShapeError, nearest
from symgraph.core.types import Array, Shape, TensorType
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed
from symgraph.passes.shards import parameter_of, piece_of


@dataclass(frozen=True)
class BindRequest:
    """The inputs of a network to bind, and the gradients that it is asked for."""

    #: Parameter or input -> what to do with its gradient: null, write or add.
    requests: Mapping[str, str]
    #: Whether gradients are computed.
    trains: bool
    #: The inputs that each pass is fed.
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    #: The inputs among them that are labels.
    labels: frozenset[str] = frozenset()
    #: The shapes of other variables, where they do not follow.
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    #: The dtypes of other variables, where they do not follow.
    dtypes: Mapping[str, str] = field(default_factory=dict)


class PlannedNetwork:
    """A symbol with its plans: with gradients, and without at the same places."""

    def __init__(self, symbol: Symbol, request: BindRequest, options: Options) -> None:
        self.symbol, self.request = symbol, request
        fed = [name for name in request.requests if name in request.feeds]
        if fed and options.micro_batches != 1:
            raise ConfigError(
                f"the gradient of input {fed[0]!r} is wanted, which needs micro_batches=1"
            )
        wrt = [n for n in symbol.list_arguments() if request.requests.get(n, "null") != "null"]
        self.training = self._plan(options, wrt if request.trains else (), heads=request.trains)
        self.placement = ArrayPlacement(self.training, options.default)

    @cached_property
    def evaluation(self) -> Plan:
        """The plan without backward phase, at the same places."""
        training = self.training
        if not training.grads and not training.options.update:
            return training
        return self._plan(training.evaluating())

    def _plan(self, options: Options, wrt: Sequence[str] = (), *, heads: bool = False) -> Plan:
        request = self.request
        return plan(
            self.symbol,
            request.feeds,
            options,
            wrt=wrt,
            heads=heads,
            shapes=request.shapes,
            dtypes=request.dtypes,
        )


class BoundNetwork:
    """A planned network on the arrays of a store."""

    def __init__(self, network: PlannedNetwork, store: ParameterStore) -> None:
        self.network, self.plan, self.store = network, network.training, store
        self.symbol, self._request = network.symbol, network.request
        self.input_grads: dict[str, Array] = {}
        self._gpus = gpus(self.plan)
        self._last: Session | Phases | None = None
        self._key = 0, 0  # of the last pass' random numbers
        self._ready = False  # the last pass was a forward whose gradients were not computed yet
        self._read: dict[str, Array] | None = None  # what the last pass, which read, was fed
        self._trainer: tuple[Optimizer, Session] | None = None
        self._updaters: tuple[Optimizer, dict[int, OptimizerStep]] | None = None

    @cached_property
    def reader(self) -> Phases:
        """The passes that do not train: the evaluation plan in one phase."""
        return self._phases_of(self.network.evaluation, self.network.evaluation.schedule)

    @cached_property
    def phases(self) -> Phases:
        """The training plan, phase by phase."""
        return self._phases_of(self.plan, *split_phases(self.plan))

    def _phases_of(self, plan: Plan, *schedules: Schedule) -> Phases:
        store = self.store
        return Phases(plan, schedules, store.cluster, store.rank_arrays(plan), store.resources)

    def prepare(self) -> None:
        """Make ready to train phase by phase and to evaluate, so that no first pass has to."""
        _ = self.phases, self.reader

    # -- running -----------------------------------------------------------------------------

    def train(self, feeds: Mapping[str, Array]) -> None:
        """Run one training step: all phases as one pipeline."""
        if not self._request.trains:
            raise RunError(
                "the module is not bound for training: bind it with for_training=True and "
                "force_rebind=True"
            )
        added = [name for name, request in self._request.requests.items() if request == "add"]
        if added:
            raise ConfigError(
                f"grad_req of {added[0]!r} is 'add', but a whole step keeps no gradients; "
                "call forward_backward and update"
            )
        if self.plan.heads:
            name = self.symbol.list_outputs()[next(iter(self.plan.heads))]
            raise GraphError(
                f"output {name!r} is not a loss, so fit cannot train it: put it through BlockGrad "
                "or MakeLoss, or call forward and backward with head gradients"
            )
        if not self.plan.grads:  # there is nothing to train, so an update changes nothing
            self.forward(feeds, train=True)
            self.update()
            return
        store, session = self.store, self._session()
        values, key = self._values(feeds, train=True), store.next_key(train=True)
        store.watch.look(self, values, True, key)
        session.seed, session.steps = key
        session.step(values)
        store.take_back(session.updaters)
        self._passed(session, trained=True)
        self._ready, self._read = False, None

    def _session(self) -> Session:
        """The training session; a new one if the store has another optimizer now."""
        store = self.store
        optimizer = store.wanted_optimizer
        if self._trainer is None or self._trainer[0] is not optimizer:
            session = Session(
                self.plan,
                store.cluster,
                store.rank_arrays(self.plan),
                optimizer=optimizer,
                seed=store.seed,
                resources=store.resources,
                keep_outputs=True,
            )
            self._trainer = optimizer, session
        store.lend(self._trainer[1].updaters)
        return self._trainer[1]

    def _optimizer_steps(self) -> dict[int, OptimizerStep]:
        """The ends of training steps that go phase by phase, likewise."""
        optimizer = self.store.wanted_optimizer
        if self._updaters is None or self._updaters[0] is not optimizer:
            ranks = self.store.cluster.ranks
            steps = {rank: OptimizerStep(self.plan, optimizer, None) for rank in ranks}
            self._updaters = optimizer, steps
        self.store.lend(self._updaters[1])
        return self._updaters[1]

    def _passed(self, run: Session | Phases, *, trained: bool) -> None:
        self._last = run
        self.store.passed(run, trained=trained)

    def forward(self, feeds: Mapping[str, Array], train: bool) -> None:
        """Compute the outputs, in training with what `backward` needs."""
        store, run = self.store, self.phases if train else self.reader
        self._ready, self._read = False, None
        values = self._values(feeds, train=train)
        self._key = store.next_key(train=train)
        store.watch.look(self, values, train, self._key)
        self._run_forward(run, values, train=train)
        self._passed(run, trained=train)
        self._ready = train
        self._read = None if train else values

    def _run_forward(self, run: Phases, values: Mapping[str, Array], *, train: bool) -> None:
        seed, step = self._key
        run.forward(values, train=train, seed=seed, step=step)

    def outputs(self) -> list[Array]:
        """The outputs of the last pass, for the whole batch, on the host."""
        if self._last is None:
            raise RunError("there are no outputs yet: call forward")
        return self._last.outputs()

    def new_outputs(self) -> list[Array]:
        """Zeros for the outputs of one micro-batch, each on its device."""
        return self.phases.new_outputs()

    def write_outputs(self, targets: Sequence[Array]) -> None:
        """Copy the outputs of the last pass of one micro-batch to these arrays."""
        assert isinstance(self._last, Phases)
        self._last.write_outputs(targets)

    def gradients_of(self, inputs: Sequence[str]) -> dict[str, Array]:
        """The gradients of those inputs that have any, by name and in this order."""
        if not self.input_grads:
            raise RunError("no gradients of inputs: bind with inputs_need_grad, call backward")
        return {name: self.input_grads[name] for name in inputs if name in self.input_grads}

    def backward(self, out_grads: Any) -> None:
        """Compute gradients, without the loss scale, into the store or `input_grads`.

        They are those of the last forward: after one that did not train, of what it computed.

        Args:
            out_grads: One array per output, in order or by name, or one array for a single output;
                those of losses are ignored and may be None. None: no head gradients.
        """
        if self._read is not None and self._request.trains:
            self._run_forward(self.phases, self._read, train=False)
            self._passed(self.phases, trained=False)
            self._ready, self._read = True, None
        self._require_forward()
        heads = self._heads(out_grads)
        self._ready = False
        self.phases.backward(heads)
        self.catch_up()
        scale, shards = self.store.loss_scale, self.plan.shards
        for variable in self.plan.grads:
            name = parameter_of(shards, variable)
            device, whole = self._gradient_device(name), self._gradient(name)
            rows, gradient = piece_of(shards, variable, whole), self.phases.gradient(variable)
            is_copy = variable in shards and shards[variable].copy > 0
            with device.use(), overflowing(self.plan):
                if scale.scales:
                    gradient = _on(device, gradient) / scale.value
                if self._request.requests[name] == "add" or is_copy:
                    rows += _on(device, gradient)
                else:
                    copy(rows, gradient)
        for gpu in self._gpus:
            gpu.finish()

    def update(self) -> None:
        """Change the parameters by the gradients in the store, which are 0 before a backward."""
        self.catch_up()
        self.store.passed(self.phases, trained=False)
        steps, scale, shards = self._optimizer_steps(), self.store.loss_scale, self.plan.shards
        for variable in self.plan.grads:
            gradient = self.phases.gradient(variable)
            whole = self._gradient(parameter_of(shards, variable))
            with device_of(self.plan, variable).use(), overflowing(self.plan):
                if variable in shards and shards[variable].copy:
                    gradient[...] = 0  # copies' gradients are summed: the first one has it all
                else:
                    copy(gradient, piece_of(shards, variable, whole))
                    if scale.scales:
                        gradient *= scale.value
        self.phases.update(steps)
        self.store.take_back(steps)

    def catch_up(self) -> None:
        """Wait for what the caller does to arrays on GPUs."""
        for gpu in self._gpus:
            gpu.catch_up()

    def _require_forward(self) -> None:
        if not self._request.trains:
            raise RunError("backward, but the module is not bound for training")
        if not self._ready:
            raise RunError("backward needs a forward before it, which it uses up")
        if not self.store.has_results_of(self._last):
            raise RunError(
                "backward: another network of the same parameters has run since this forward; "
                "call forward again"
            )

    def _gradient_device(self, name: str) -> Device:
        """Where the gradient of a parameter or an input is kept."""
        return HOST if name in self._request.feeds else self.network.placement.of(name)

    def _gradient(self, name: str) -> Array:
        """The whole gradient of a parameter or an input; zeros if there is none yet."""
        if name in self._request.feeds:
            shape, dtype = self._request.feeds[name].type
            return self.input_grads.setdefault(name, np.zeros(shape, dtype))
        grads = self.store.grads
        if name not in grads:
            like = self.store.arrays[name]
            type_ = TensorType(like.shape, like.dtype.name)
            grads |= self.network.placement.zeros({name: type_})
        return grads[name]

    def _values(self, arrays: Mapping[str, Array], *, train: bool) -> dict[str, Array]:
        """The fed arrays in their types; labels that are not given are 0 unless it trains."""
        values = {}
        for name, feed in self._request.feeds.items():
            shape, dtype = feed.type
            if name in arrays:
                values[name] = np.asarray(on_host(arrays[name]), dtype, order="C")
                if values[name].shape != shape:
                    actual = values[name].shape
                    raise ShapeError(f"{name!r} has shape {actual}, but {shape} is bound")
            elif name in self._request.labels and not train:
                values[name] = np.zeros(shape, dtype)
        return values

    def _heads(self, out_grads: Any) -> dict[str, Array]:
        """The values of the backward phase: head gradients times the loss scale, and the scale."""
        if self.plan.heads and len(self.plan.sizes) > 1:
            raise ConfigError("backward with head gradients needs micro_batches=1")
        names = self.symbol.list_outputs()
        if out_grads is None:
            out_grads = []
        elif isinstance(out_grads, Mapping):
            for name in out_grads:
                if name not in names:
                    raise GraphError(f"backward: no output {name!r}; {nearest(name, names)}")
            out_grads = [out_grads.get(name) for name in names]
        elif not isinstance(out_grads, (list, tuple)):
            out_grads = [out_grads]
        scale = self.store.loss_scale
        heads = head_gradients(self.plan, names, out_grads)
        if scale.scales:
            heads = {name: _times(head, scale.value) for name, head in heads.items()}
        return heads | scale_feeds(self.plan, scale)

    def samples(
        self, first: str, labels: Sequence[str]
    ) -> tuple[int, list[Layout], dict[str, int | None]]:
        """Tell where the samples of a batch lie.

        Args:
            first: The input that tells the batch's size.
            labels: The names of labels.

        Returns:
            The batch's size; its layout in each output; its axis in each label, None for a label
            that the network does not read.
        """
        plan, feeds = self.plan, self._request.feeds
        (shape, _), axis = feeds[first]
        layouts = [plan.layouts[v] for v in plan.outputs]
        types = plan.partition.graph.types_of(plan.outputs)
        for i, type_ in enumerate(types):  # what mixes samples may have them along its rows
            if layouts[i] is WHOLE and type_.shape[:1] == (shape[axis],):
                layouts[i] = Split(0)
        return shape[axis], layouts, {n: feeds[n].axis if n in feeds else None for n in labels}


def _on(device: Device, array: Array) -> Array:
    """An array as this device can add it: on the host, or as it is."""
    return on_host(array) if device.is_host else array


def _times(head: Array, scale: float) -> Array:
    """A head gradient times the loss scale, where it lies; it is done when this returns."""
    with beside(head):
        return typed(head * scale, str(head.dtype))
