"""The store module: networks on one parameter store, bound, trained and saved."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.arguments import as_batch, create_initializer, create_optimizer
from runtime.frontends.mxnet.base_module import (
    RATE,
    BaseModule,
    Params,
    Settings,
    Store,
    as_ndarrays,
    per_context,
)
from runtime.frontends.mxnet.bound_network import BoundNetwork
from runtime.frontends.mxnet.internals_watch import (
    Active,
    Callback,
    InternalsWatch,
    always,
    gradient_names,
)
from runtime.frontends.mxnet.module_binding import BindMode, ModuleBinding, ModuleSymbol
from runtime.frontends.mxnet.parameter_store import FirstValues, ParameterStore
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.transports import ThreadCluster
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import GraphError, RunError, nearest
from symgraph.core.html import paragraph, together
from symgraph.core.types import Array, Shape
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.ndarray import viewed
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import save_checkpoint
from symgraph.frontend.symbol import Symbol

MOST_INPUTS = 4  # that a module names when it shows itself


class StoreModule(BaseModule):
    """Networks on one parameter store, of which one is current.

    How a module finds the network of a batch is in `_turn_to`.
    """

    #: Whether other modules may share its parameters.
    shareable = True

    def __init__(
        self, names: ModuleSymbol, options: Options, seed: int | None, logger: Any
    ) -> None:
        """names: those of the symbol that holds all parameters."""
        super().__init__(logger)
        self._names, self._options, self._seed = names, options, seed
        self._loaded: tuple[Params, Params] | None = None  # of a checkpoint, until it is bound
        self._loaded_states: str | None = None
        self._bound: tuple[ParameterStore, ModuleBinding] | None = None
        self._turned: ModuleBinding | None = None  # to the current bucket
        self._buckets: dict[Hashable, ModuleBinding] = {}  # besides the default one
        self._states: dict[str, Array] = {}  # the values of inputs that batches do not have

    def _state(self) -> str:
        if self._bound is None:
            return "not bound"
        data = self._current.data
        inputs = " and ".join(f"{d.name} {d.shape}" for d in data[:MOST_INPUTS])
        more = f" and {len(data) - MOST_INPUTS} more" if len(data) > MOST_INPUTS else ""
        optimizer = self._store.optimizer
        trains = "" if optimizer is None else f", {type(optimizer).__name__}"
        return f"bound to {inputs}{more}{trains}, {self.plan!r}"

    def __str__(self) -> str:
        return f"{self!r}\n{self.plan}" if self.binded else repr(self)

    def _repr_html_(self) -> str:
        """Return the same as HTML, for notebooks."""
        plan = self.plan._repr_html_() if self.binded else ""
        return together(paragraph([repr(self)]), plan)

    # -- names and shapes ----------------------------------------------------------------------

    @property
    def binded(self) -> bool:
        """Whether it is bound to shapes."""
        return self._bound is not None

    @property
    def for_training(self) -> bool:
        """Whether it is bound for training."""
        return self._bound is not None and self._default.mode.for_training

    @property
    def inputs_need_grad(self) -> bool:
        """Whether it is bound for gradients of the inputs."""
        return self._bound is not None and self._default.mode.inputs_need_grad

    @property
    def params_initialized(self) -> bool:
        """Whether parameters have values."""
        return self._loaded is not None or (self.binded and self._store.ready)

    @property
    def optimizer_initialized(self) -> bool:
        """Whether there is an optimizer."""
        return self.binded and self._store.optimizer is not None

    @property
    def _store(self) -> ParameterStore:
        return self._require_bound()[0]

    @property
    def _default(self) -> ModuleBinding:
        """The binding of the symbol that holds all parameters."""
        return self._require_bound()[1]

    @property
    def _current(self) -> ModuleBinding:
        """The binding of the current bucket."""
        return self._turned or self._default

    @property
    def _current_names(self) -> ModuleSymbol:
        return self._current.names if self.binded else self._names

    @property
    def _last(self) -> BoundNetwork:
        """The network that ran last."""
        return self._current.last

    @property
    def symbol(self) -> Symbol:
        """The network; that of the current bucket if there are several."""
        return self._current_names.symbol

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        return self._current_names.data_names

    @property
    def label_names(self) -> list[str]:
        """The names of the labels."""
        return self._current_names.label_names

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return self.symbol.list_outputs()

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The inputs as they were bound."""
        return self._current.data

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound."""
        return self._current.labels

    @property
    def _label_shapes(self) -> list[DataDesc] | None:
        """The labels as they were bound, or None: MXNet's tutorials pass it on to `bind`."""
        return self._current.labels if self.binded else None

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of each output of the bound network."""
        return self._current.output_shapes

    @property
    def loss_scale(self) -> float:
        """The factor of gradients in the next step; 1 without a loss scale."""
        return self._store.loss_scale.value

    @property
    def plan(self) -> Plan:
        """The plan of the network that ran last: placement, schedule, memory."""
        return self._last.plan

    # -- binding -------------------------------------------------------------------------------

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str | Sequence[str] | Mapping[str, str] = "write",
    ) -> None:
        """Plan the network for these shapes; of several buckets, that of the default one.

        A bound module stays as it is unless force_rebind, which keeps the parameters. If planning
        fails, everything stays as it was.

        Args:
            data_shapes: DataDescs, or (name, shape[, dtype, layout]).
            label_shapes: Likewise.
            for_training: Whether gradients are computed.
            inputs_need_grad: Whether gradients of the inputs are computed.
            force_rebind: Whether a bound module is bound anew.
            shared_module: A bound module whose parameters and devices are used.
            grad_req: null, write or add: for all parameters, for each in order, or by name.

        Raises:
            SymgraphError: Whatever planning raises.
        """
        if self.binded and not force_rebind:
            return
        mode = BindMode(for_training, inputs_need_grad, grad_req)
        leader = None
        if shared_module is not None:
            _require_shareable(shared_module)
            store, leader = shared_module._require_bound()
        else:
            store = self._store if self.binded else self._new_store()
        try:
            binding = ModuleBinding(
                self._names, data_shapes, label_shapes, mode, self._options, store, leader
            )
        except BaseException:
            if not self.binded and shared_module is None:
                store.cluster.close()
            raise
        if self.binded and shared_module is None:
            store.move(self._default.plan, binding.plan)
        self._bound, self._turned, self._buckets = (store, binding), None, {}
        self._states = {n: np.zeros(*feed.type) for n, feed in binding.state_feeds.items()}
        if self._loaded is not None:
            self.init_params(None, *self._loaded)

    def reshape(
        self, data_shapes: Sequence[Any], label_shapes: Sequence[Any] | None = None
    ) -> None:
        """Bind again for the same purpose to other shapes; parameters and optimizer stay."""
        mode = self._default.mode
        self.bind(
            data_shapes,
            label_shapes,
            mode.for_training,
            mode.inputs_need_grad,
            force_rebind=True,
            grad_req=mode.grad_req,
        )

    def _new_store(self) -> ParameterStore:
        cluster = ThreadCluster(len(self._options.devices))
        return ParameterStore(cluster, seed=self._seed, loss_scale=self._options.loss_scale)

    # -- parameters ----------------------------------------------------------------------------

    def init_params(
        self,
        initializer: AnyInitializer | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set first values of parameters: the given ones, and the initializer's for the rest.

        Raises GraphError for a name that is no parameter unless allow_extra, and, if any are given,
        RunError for a parameter that is not given unless allow_missing.
        """
        store, names = self._store, self._names
        if store.ready and not force_init:
            if arg_params or aux_params:
                self.logger.warning(
                    "init_params: parameters already have values, which stay unless force_init=True"
                )
            return
        if self._loaded is not None and arg_params is None:
            arg_params, aux_params = self._loaded
        initializer = create_initializer(initializer, arg_params)
        tables = FirstValues(names.parameters, arg_params), FirstValues(names.states, aux_params)
        for known, values in tables:
            missing = [] if values is None else [name for name in known if name not in values]
            if missing and not allow_missing:
                raise RunError(f"parameter {missing[0]!r} is missing among those given")
            for name in values or ():
                if name not in known and not allow_extra:
                    raise GraphError(f"no parameter {name!r}; {nearest(name, known)}")
        store.initialize(tables, initializer, names.symbol.attr_dict())
        self._loaded = None

    def get_params(self) -> tuple[Params, Params]:
        """Copy (parameters, auxiliary states), by name."""
        if not self.binded and self._loaded is not None:
            return self._loaded
        store, names = self._ready_store(), self._names
        return as_ndarrays(store.copies(names.parameters)), as_ndarrays(store.copies(names.states))

    @property
    def grad_dict(self) -> Params:
        """Parameter -> what `backward` computed: arrays that `update` reads, and "add" adds to.

        They lie on the parameters' devices; of one in shards or replicas, whole on the host. They
        do not contain the loss scale.
        """
        return as_ndarrays(self._store.grads)

    # -- steps ---------------------------------------------------------------------------------

    def init_optimizer(
        self,
        kvstore: Store = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer, by name or as an object; one that is chosen stays.

        One by name divides gradients by the bound batch's size, unless rescale_grad is among its
        settings (as in MXNet).
        """
        store = self._ready_store()
        chosen = create_optimizer(kvstore, optimizer, optimizer_params, self._default.data[0])
        if store.optimizer is not None and not force_init:
            self.logger.warning(
                "init_optimizer: there already is an optimizer, which stays unless force_init=True"
            )
            return
        store.begin(chosen)
        if self._loaded_states is not None:
            self.load_optimizer_states(self._loaded_states)
            self._loaded_states = None

    def _turn_to(self, batch: DataBatch) -> dict[str, Any]:
        """Make the network of a batch the last one; return the batch's arrays by name."""
        self._ready_store()
        return self._current.turn_to(batch) | self._states

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch; is_train: by default whether it is bound for training.

        The batch may be any object that has `data`, a list of arrays, and whatever else it has of a
        DataBatch. One of other shapes than the bound ones is bound by itself.
        """
        train = self.for_training if is_train is None else is_train
        if train and not self.for_training:
            raise RunError("forward(is_train=True), but the module is not bound for training")
        feeds = self._turn_to(as_batch(data_batch))
        self._last.forward(feeds, train)

    def train_batch(self, data_batch: Any) -> None:
        """Run forward, backward and update as one pipelined step."""
        if self.binded and self._store.watch.active:  # a whole step keeps no gradients to show
            super().train_batch(data_batch)
            return
        feeds = self._turn_to(as_batch(data_batch))
        self._last.train(feeds)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients; out_grads: one array per output that is not a loss."""
        self._last.backward(out_grads)

    def update(self) -> None:
        """Change the parameters by the gradients."""
        self._last.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last batch; without merging, each in a list of its own."""
        return per_context([*map(viewed, self._last.outputs())], merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the inputs, in the order of data_names; merging: as `get_outputs`.

        The context of each is the device where its input is read.
        """
        found = self._last.gradients_of(self.data_names)
        device_of = self._last.plan.device_of
        placed = [viewed(array, device_of(name)) for name, array in found.items()]
        return per_context(placed, merge_multi_context)

    def get_states(self, merge_multi_context: bool = True) -> list[Any]:
        """The values of `state_names`; merging: as `get_outputs`."""
        found = [viewed(self._states[name].copy()) for name in self._names.state_names]
        return per_context(found, merge_multi_context)

    def set_states(self, states: Sequence[Any] | None = None, value: float | None = None) -> None:
        """Set the values of `state_names`: to arrays, in order, or all to a number.

        Raises GraphError unless exactly one of both is given, with an array for each name.
        """
        names = self._names.state_names
        if (states is None) == (value is None):
            raise GraphError("set_states takes either states or a value")
        values = [value] * len(names) if states is None else list(states)
        if len(values) != len(names):
            raise GraphError(f"set_states: {len(values)} arrays for the states {names}")
        for name, new in zip(names, values, strict=True):
            array = on_host(new[0] if isinstance(new, list | tuple) else new)
            if array.ndim and array.shape != self._states[name].shape:
                shape = self._states[name].shape
                raise GraphError(f"set_states: {name!r} of shape {shape} is given {array.shape}")
            self._states[name][...] = array

    # -- monitors ------------------------------------------------------------------------------

    def install_monitor(self, mon: Any) -> None:
        """Let a `mx.mon.Monitor` see every pass."""
        self._require_bound()
        mon.install(self)

    def set_monitor_callback(
        self, callback: Callback, monitor_all: bool = False, active: Active = always
    ) -> None:
        """Call a function with the name and values of every output of every node, each pass.

        Args:
            callback: Called with (name, array) before a pass that trains and updates, and with
                other passes.
            monitor_all: Whether what each node reads is shown as well, as `<node>_<input>`.
            active: Asked before each pass whether to show it.
        """
        self._store.watch.close()
        self._store.watch = InternalsWatch(callback, active, inputs=monitor_all)

    def named_arrays(self) -> list[tuple[str, Array]]:
        """The last inputs, parameters, states and gradients, by name, for monitors."""
        tables = (as_ndarrays(self._store.watch.fed), *self.get_params())
        names = gradient_names(self._current_names.symbol)
        gradients = [
            (names.get(name, f"{name}_backward"), viewed(on_host(array)))
            for name, array in self._store.grads.items()
        ]
        return [*(pair for table in tables for pair in table.items()), *gradients]

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        """Tell where the samples of the last batch lie.

        Returns:
            The batch's size; its layout in each output; its axis in each label, in the batch's
            order, or None for a label that the network does not read.
        """
        return self._current.samples()

    # -- checkpoints ---------------------------------------------------------------------------

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        """Write `<prefix>-symbol.json`, `<prefix>-<epoch>.params` and, if wanted, `.states`.

        The symbol of several buckets is the default one's.
        """
        save_checkpoint(prefix, epoch, self._names.symbol, *self.get_params())
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    def start_from(self, params: tuple[Params, Params], states: str | None = None) -> None:
        """Take these parameters when it is bound; states: a file for when it has an optimizer."""
        self._loaded, self._loaded_states = params, states

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's arrays, by parameter and slot, and the number of updates."""
        self._store.save_states(fname, self._default.plan)

    def load_optimizer_states(self, fname: str) -> None:
        """Read what `save_optimizer_states` wrote; the optimizer must be of the same kind."""
        self._store.load_states(fname, self._default.plan)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End the module's threads; it cannot run afterwards."""
        if self.binded:
            self._store.close()

    def _require_bound(self) -> tuple[ParameterStore, ModuleBinding]:
        if self._bound is None:
            raise RunError("the module is not bound to shapes: call bind")
        return self._bound

    def _ready_store(self) -> ParameterStore:
        store = self._store
        if not store.ready:
            raise RunError("the parameters have no values yet: call init_params")
        return store


def _require_shareable(module: Any) -> None:
    """TypeError for anything but a module whose parameters others may share."""
    if not isinstance(module, StoreModule) or not module.shareable:
        raise TypeError(f"shared_module is a Module, not a {type(module).__name__}")
