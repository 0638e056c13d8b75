"""The module: a network with its parameters and optimizer, bound to shapes (MXNet's Module)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from partitioner.placement.group2ctx import Groups
from runtime.frontends.mxnet.base_module import RATE, BaseModule, Params, Settings
from runtime.frontends.mxnet.bound_network import BindRequest, BoundNetwork
from runtime.frontends.mxnet.parameter_store import Store
from runtime.frontends.mxnet.placement import (
    Key,
    argument_types,
    chosen,
    described,
    first_values,
    grad_requests,
    guessed,
    input_key,
    labels_among,
    matched,
    names_among,
    placed,
    require_kind,
    require_names,
)
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.transports import ThreadCluster
from symgraph.core.batch_layout import Layout
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, GraphError, RunError, nearest
from symgraph.core.types import Array, Shape, is_float
from symgraph.frontend.init import Initializer, Mixed, Uniform
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_checkpoint, save_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.passes.loss_scale import AUTO, LossScale
from symgraph.passes.precision import FLOAT32


class Module(BaseModule):
    """A network that is trained and used batch by batch (MXNet Module).

    context: a device, or several, over which group2ctxs (ctx_group -> device, or a list of one
    such dict) or else the strategy places the network; results do not depend on where. A batch
    goes through in `micro_batches` under `schedule`, cut along time if `time_segment` says so; see
    runtime.Options. seed: of first values and dropout. precision: float16 or bfloat16 keeps
    activations in 16 bits and parameters in float32 (symgraph.passes.precision); loss_scale: what
    losses' gradients are multiplied by until the update, or `auto`
    (symgraph.passes.loss_scale). `forward`, `backward` and `update` are the three parts of a step;
    `fit` runs steps whole, so that parts overlap.
    """

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        group2ctxs: Groups | Sequence[Groups] | None = None,
        *,
        micro_batches: int = 1,
        schedule: str = "gpipe",
        time_segment: int | str | None = None,
        strategy: str = "auto",
        seed: int = 0,
        precision: str = FLOAT32,
        loss_scale: float | str = AUTO,
    ) -> None:
        super().__init__(logger)
        self._symbol = symbol
        arguments = symbol.list_arguments()
        self._data_names = names_among("data_names", data_names, arguments)
        self._fixed = names_among("fixed_param_names", fixed_param_names, arguments)
        self._label_names = labels_among(label_names, arguments, logger)
        fed = {*self._data_names, *self._label_names}
        self._param_names = [n for n in arguments if n not in fed]
        self._aux_names = symbol.list_auxiliary_states()
        options = Options(
            schedule=schedule,
            micro_batches=micro_batches,
            time_segment=time_segment,
            precision=precision,
            loss_scale=LossScale.of(precision, loss_scale),
        )
        self._options = placed(options, context, group2ctxs, strategy)
        self._seed = seed
        self._given: tuple[Params, Params] | None = None  # of a checkpoint, until it is bound
        self._given_states: str | None = None
        self.binded = self.for_training = self.inputs_need_grad = False

    # -- names and shapes ----------------------------------------------------------------------

    @property
    def symbol(self) -> Symbol:
        return self._symbol

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        return self._data_names

    @property
    def label_names(self) -> list[str]:
        return self._label_names

    @property
    def output_names(self) -> list[str]:
        return self._symbol.list_outputs()

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The inputs as they were bound."""
        self._require_bound()
        return self._data_descs

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound."""
        self._require_bound()
        return self._label_descs

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of each output of the bound network."""
        self._require_bound()
        shapes = {d.name: d.shape for d in (*self._data_descs, *self._label_descs)}
        return list(zip(self.output_names, self._symbol.infer_shape(**shapes)[1], strict=True))

    @property
    def params_initialized(self) -> bool:
        return self._given is not None or (self.binded and self._store.ready)

    @property
    def optimizer_initialized(self) -> bool:
        return self.binded and self._store.optimizer is not None

    @property
    def loss_scale(self) -> float:
        """What the next step's gradients are multiplied by; 1 where nothing is."""
        self._require_bound()
        return self._store.loss_scale.value

    @property
    def plan(self) -> Plan:
        """The plan of the bound network: placement, schedule, memory."""
        return self._current().plan

    # -- binding -------------------------------------------------------------------------------

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str | Mapping[str, str] = "write",
    ) -> None:
        """Plan the network for these shapes: DataDescs, or (name, shape[, dtype, layout]).

        A bound module stays as it is unless force_rebind, which keeps the parameters.
        shared_module: a bound module whose parameters and devices are used. grad_req: null, write
        or add, for all parameters or by name. Raises what planning raises.
        """
        if self.binded and not force_rebind:
            return
        if inputs_need_grad and not for_training:
            raise ConfigError("inputs_need_grad: only a module that is bound for training has them")
        self._data_descs = described("data_shapes", data_shapes)
        self._labels_given = described("label_shapes", label_shapes)
        self._label_descs = [d for d in self._labels_given if d.name in self._label_names]
        self._label_order = [d.name for d in self._labels_given] or self._label_names
        require_names("data_shapes", self._data_descs, self._data_names)
        if for_training and self._labels_given:
            require_names("label_shapes", self._labels_given, self._label_names, others=True)
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        trained = [n for n in self._param_names if n not in self._fixed]
        self._requests = grad_requests(grad_req, self._param_names, trained)
        if inputs_need_grad:
            self._requests |= {d.name: "write" for d in self._data_descs if is_float(d.dtype)}
        self._model: Plan | None = None  # what the shared module's network is planned as
        if shared_module is not None:
            require_kind("shared_module", shared_module, Module)
            shared_module._require_bound()
            self._store: Store = shared_module._store
            self._model = shared_module._own.plan
        elif not self.binded:
            options = self._options
            self._store = Store(ThreadCluster(len(options.devices)), self._seed, options.loss_scale)
        self._bounds: dict[Key, BoundNetwork] = {}
        bound = self._bind(self._data_descs, self._label_descs)
        if self.binded and shared_module is None:
            self._store.placed_anew(self._own.plan, bound.plan)
        self._own: BoundNetwork = bound
        self._last = bound
        self.binded = True
        if self._given is not None:
            self.init_params(None, *self._given)

    def _bind(self, data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> BoundNetwork:
        """The network for these shapes, planned if it is not yet; one further batch is kept."""
        key = input_key([*data, *labels])
        if key not in self._bounds:
            feeds = {d.name: d.feed for d in (*data, *labels)}
            missing = [n for n in self._label_names if n not in feeds]
            types = argument_types(self._symbol, feeds)
            self._store.allocate({n: types[n] for n in (*self._param_names, *self._aux_names)})
            feeds |= {name: guessed(name, types[name].shape, data) for name in missing}
            wanted = BindRequest(
                feeds, frozenset(self._label_names), self._requests, self.for_training
            )
            if len(self._bounds) > 1:
                del self._bounds[list(self._bounds)[1]]
            self._bounds[key] = BoundNetwork(self._symbol, wanted, self._how(), self._store)
        return self._bounds[key]

    def _how(self) -> Options:
        """How a network is planned: where groups say, the first one is, or the shared module's."""
        if self._bounds and self._options.strategy is not None and self._model is None:
            first = self._own.plan
            return replace(first.options, placement=first.placement, like=None)
        return self._options if self._model is None else self._model.following(memory=None)

    # -- parameters ----------------------------------------------------------------------------

    def init_params(
        self,
        initializer: Initializer | Mixed | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """First values of parameters: those given, and for the rest the initializer's.

        Raises GraphError for a name that is no parameter unless allow_extra, and, if any are
        given, for a parameter that is not given unless allow_missing.
        """
        self._require_bound()
        if self._store.ready and not force_init:
            if arg_params or aux_params:
                self.logger.warning(
                    "init_params: parameters have values already, which stay unless force_init=True"
                )
            return
        if self._given is not None and arg_params is None:
            arg_params, aux_params = self._given
        initializer = first_values(initializer, arg_params)
        attrs = self._symbol.attr_dict()
        for names, given in ((self._param_names, arg_params), (self._aux_names, aux_params)):
            for name in given or ():
                if name not in names and not allow_extra:
                    raise GraphError(f"no parameter {name!r}; {nearest(name, names)}")
            self._store.initialize(names, given, initializer, attrs, allow_missing=allow_missing)
        self._store.ready = True
        self._given = None

    def get_params(self) -> tuple[Params, Params]:
        if not self.binded and self._given is not None:
            return self._given
        self._require_ready()
        return self._store.copies(self._param_names), self._store.copies(self._aux_names)

    @property
    def grad_dict(self) -> Params:
        """Parameter -> what `backward` computed: arrays that `update` reads, and "add" adds to.

        They lie on the parameters' devices; of one in shards or replicas, whole on the host. They
        are without the loss scale.
        """
        self._require_bound()
        return self._store.grads

    # -- steps ---------------------------------------------------------------------------------

    def init_optimizer(
        self,
        kvstore: str | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer, by name or as an object; one that is chosen stays.

        One by name divides gradients by the bound batch's size, unless rescale_grad is among its
        settings (as in MXNet).
        """
        self._require_ready()
        made = chosen(kvstore, optimizer, optimizer_params, self._data_descs[0])
        if self._store.optimizer is not None and not force_init:
            self.logger.warning(
                "init_optimizer: there is an optimizer already, which stays unless force_init=True"
            )
            return
        self._store.begin(made)
        if self._given_states is not None:
            self.load_optimizer_states(self._given_states)
            self._given_states = None

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch; is_train: by default whether it is bound for training.

        A batch of other shapes than the bound ones is bound by itself.
        """
        train = self.for_training if is_train is None else is_train
        if train and not self.for_training:
            raise RunError("forward(is_train=True), but the module is not bound for training")
        self._last, feeds = self._network(data_batch)
        self._last.forward(feeds, train)

    def backward(self, out_grads: Any = None) -> None:
        if out_grads is not None and not isinstance(out_grads, (list, tuple)):
            out_grads = [out_grads]
        self._current().backward(out_grads or [])

    def update(self) -> None:
        self._current().update()

    def train_batch(self, data_batch: DataBatch) -> None:
        self._last, feeds = self._network(data_batch)
        self._last.train(feeds)

    def _network(self, batch: DataBatch) -> tuple[BoundNetwork, dict[str, Any]]:
        """The network bound to a batch's shapes, and its arrays by name."""
        self._require_ready()
        data = matched("data", self._data_descs, batch.data, batch.provide_data)
        labels = matched("label", self._labels_given, batch.label, batch.provide_label)
        self._label_order = [d.name for d, _ in labels] or self._label_order
        labels = [(d, array) for d, array in labels if d.name in self._label_names]
        feeds = {d.name: array for d, array in (*data, *labels)}
        descs = [d for d, _ in data]
        if not labels:  # as bound with labels: they are 0 where nothing trains
            inputs = input_key(descs)
            for key, bound in self._bounds.items():
                if key[: len(inputs)] == inputs:
                    return bound, feeds
        return self._bind(descs, [d for d, _ in labels]), feeds

    def _current(self) -> BoundNetwork:
        self._require_bound()
        return self._last

    def get_outputs(self) -> list[Array]:
        return self._current().outputs()

    def get_input_grads(self) -> list[Array]:
        """The gradients of the inputs, in the order of data_names."""
        return self._current().gradients_of(self._data_names)

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        return self._current().samples(self._data_names[0], self._label_order)

    # -- checkpoints ---------------------------------------------------------------------------

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        """Write `<prefix>-symbol.json`, `<prefix>-<epoch>.params` and, if wanted, `.states`."""
        save_checkpoint(prefix, epoch, self._symbol, *self.get_params())
        if save_optimizer_states:
            self.save_optimizer_states(f"{prefix}-{epoch:04d}.states")

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """A module of a checkpoint, to be bound; keywords as for Module."""
        symbol, *params = load_checkpoint(prefix, epoch)
        module = Module(symbol, **kwargs)
        states = f"{prefix}-{epoch:04d}.states" if load_optimizer_states else None
        module.start_from((params[0], params[1]), states)
        return module

    def start_from(self, params: tuple[Params, Params], states: str | None = None) -> None:
        """Take these parameters when it is bound; states: a file for when it has an optimizer."""
        self._given, self._given_states = params, states

    def save_optimizer_states(self, fname: str) -> None:
        """Write the optimizer's arrays, by parameter and slot, and the number of updates."""
        self._store.save_states(fname, self._own.plan)

    def load_optimizer_states(self, fname: str) -> None:
        """Go on with what `save_optimizer_states` wrote; the optimizer must be of the same kind."""
        self._store.load_states(fname, self._own.plan)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        if self.binded:
            self._store.cluster.close()

    def _require_bound(self) -> None:
        if not self.binded:
            raise RunError("the module is not bound to shapes: call bind")

    def _require_ready(self) -> None:
        self._require_bound()
        if not self._store.ready:
            raise RunError("the parameters have no values yet: call init_params")
