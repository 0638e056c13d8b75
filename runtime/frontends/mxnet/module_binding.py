"""The binding of a module: a symbol bound to inputs, with one network for each set of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from runtime.frontends.mxnet.arguments import (
    GradReq,
    argument_types,
    descriptions,
    grad_requests,
    guessed_input,
    known_labels,
    known_names,
    match_arrays,
    require_names,
)
from runtime.frontends.mxnet.bound_network import BindRequest, BoundNetwork, PlannedNetwork
from runtime.frontends.mxnet.parameter_store import ParameterStore
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import ConfigError
from symgraph.core.types import Shape, is_float
from symgraph.frontend.infer import undifferentiable
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

InputKey = tuple[tuple[str, Feed], ...]  # the inputs that a network is bound to


@dataclass(frozen=True)
class ModuleSymbol:
    """A symbol, and which of its arguments are data, labels, states and fixed parameters."""

    symbol: Symbol
    data_names: list[str]
    label_names: list[str]
    fixed_names: list[str]
    #: Inputs that batches do not have: their values stay until `set_states`.
    state_names: list[str]

    @classmethod
    def of(
        cls,
        symbol: Symbol,
        data_names: Sequence[str] | None,
        label_names: Sequence[str] | None,
        fixed_names: Sequence[str] | None,
        logger: Any,
        state_names: Sequence[str] | None = None,
    ) -> ModuleSymbol:
        """Check the names that a module is given."""
        if not isinstance(symbol, Symbol):
            raise TypeError(f"a module is made of a symbol, not {symbol!r}")
        arguments = symbol.list_arguments()
        return cls(
            symbol,
            known_names("data_names", data_names, arguments),
            known_labels(label_names, arguments, logger),
            known_names("fixed_param_names", fixed_names, arguments),
            known_names("state_names", state_names, arguments),
        )

    @cached_property
    def parameters(self) -> list[str]:
        """The arguments that are no inputs."""
        inputs = {*self.data_names, *self.label_names, *self.state_names}
        return [n for n in self.symbol.list_arguments() if n not in inputs]

    @cached_property
    def states(self) -> list[str]:
        """The auxiliary states."""
        return self.symbol.list_auxiliary_states()


@dataclass(frozen=True)
class BindMode:
    """The purpose that a module is bound for; see StoreModule.bind."""

    for_training: bool
    inputs_need_grad: bool
    grad_req: GradReq

    def __post_init__(self) -> None:
        if self.inputs_need_grad and not self.for_training:
            raise ConfigError("inputs_need_grad needs for_training=True")


class ModuleBinding:
    """A module's symbol, bound: the network of the bound shapes, and of further batches' shapes."""

    #: The network that ran last.
    last: BoundNetwork

    def __init__(
        self,
        names: ModuleSymbol,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None,
        mode: BindMode,
        options: Options,
        store: ParameterStore,
        leader: ModuleBinding | None = None,
    ) -> None:
        """Plan the network for these shapes.

        Args:
            names: The symbol and its inputs.
            data_shapes: Descriptions of the data.
            label_shapes: Descriptions of the labels; those that are missing are guessed.
            mode: What the networks are for.
            options: How to plan them.
            store: Holds the parameters.
            leader: The binding of another symbol on the same parameters, whose placement is
                followed.
        """
        self.names, self.mode, self.store = names, mode, store
        self.leader, self._options = leader, options
        self.data = descriptions("data_shapes", data_shapes)
        self._given_labels = descriptions("label_shapes", label_shapes)
        self.labels = [d for d in self._given_labels if d.name in names.label_names]
        self._label_order = [d.name for d in self._given_labels] or names.label_names
        require_names("data_shapes", self.data, names.data_names)
        if mode.for_training and self._given_labels:
            require_names("label_shapes", self._given_labels, names.label_names, others=True)
        requests = grad_requests(mode.grad_req, names.parameters, "parameter")
        fixed = {*names.fixed_names, *undifferentiable(names.symbol)}
        self._requests = {n: r for n, r in requests.items() if n not in fixed}
        if mode.inputs_need_grad:
            self._requests |= {d.name: "write" for d in self.data if is_float(d.dtype)}
        self._networks: dict[InputKey, BoundNetwork] = {}
        self.first = self.last = self._bind(self.data, self.labels)

    @property
    def plan(self) -> Plan:
        """The plan of the bound shapes."""
        return self.first.plan

    @property
    def state_feeds(self) -> dict[str, Feed]:
        """The types of `state_names` for the bound shapes."""
        return {name: self.plan.feeds[name] for name in self.names.state_names}

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of each output for the bound shapes."""
        symbol, shapes = self.names.symbol, {d.name: d.shape for d in (*self.data, *self.labels)}
        return list(zip(symbol.list_outputs(), symbol.infer_shape(**shapes)[1], strict=True))

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        """See StoreModule.samples."""
        return self.last.samples(self.names.data_names[0], self._label_order)

    def turn_to(self, batch: DataBatch) -> dict[str, Any]:
        """Make the network of a batch's shapes the last one; return the batch's arrays by name.

        A batch of other shapes than the bound ones is bound by itself.
        """
        names = self.names
        data = match_arrays("data", self.data, batch.data, batch.provide_data)
        labels = match_arrays("label", self._given_labels, batch.label, batch.provide_label)
        self._label_order = [d.name for d, _ in labels] or self._label_order
        labels = [(d, array) for d, array in labels if d.name in names.label_names]
        descs = [d for d, _ in data]
        bound = None
        if not labels:  # as bound with labels: they are 0 where nothing trains
            inputs = _key(descs)
            same = (n for key, n in self._networks.items() if key[: len(inputs)] == inputs)
            bound = next(same, None)
        self.last = bound or self._bind(descs, [d for d, _ in labels])
        return {d.name: array for d, array in (*data, *labels)}

    def _bind(self, data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> BoundNetwork:
        """The network for these shapes, planned if it is new; one besides the first is kept."""
        key = _key([*data, *labels])
        if key not in self._networks:
            request = self._request(data, labels)
            if len(self._networks) > 1:
                del self._networks[list(self._networks)[1]]
            network = PlannedNetwork(self.names.symbol, request, self._network_options(data))
            self._networks[key] = BoundNetwork(network, self.store)
        return self._networks[key]

    def _request(self, data: Sequence[DataDesc], labels: Sequence[DataDesc]) -> BindRequest:
        """The request for a network of these inputs; allocates parameters that are new."""
        names, store = self.names, self.store
        feeds = {d.name: d.feed for d in (*data, *labels)}
        missing = [n for n in (*names.label_names, *names.state_names) if n not in feeds]
        types = argument_types(names.symbol, feeds)
        store.allocate({n: types[n] for n in (*names.parameters, *names.states)})
        feeds |= {name: guessed_input(name, types[name].shape, data) for name in missing}
        return BindRequest(
            self._requests,
            trains=self.mode.for_training,
            feeds=feeds,
            labels=frozenset(names.label_names),
            dtypes={name: str(a.dtype) for name, a in store.arrays.items()},
        )

    def _network_options(self, data: Sequence[DataDesc]) -> Options:
        """Return the options of a network: the module's, the leader's, or those of the first one.

        A later network of fewer samples than micro-batches has one sample in each.
        """
        options, leader = self._options, self.leader or (self if self._networks else None)
        if leader is not None:
            options = leader.plan.following(memory=None)
            if isinstance(options.micro_batches, int):
                samples = min(feed.type.shape[feed.axis] for feed in (d.feed for d in data))
                count = max(1, min(options.micro_batches, samples))
                options = replace(options, micro_batches=count)
        return replace(options, update=self.mode.for_training)


def _key(descs: Sequence[DataDesc]) -> InputKey:
    return tuple([(d.name, d.feed) for d in descs])
