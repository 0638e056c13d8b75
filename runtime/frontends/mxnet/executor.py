"""The executor: MXNet's forward/backward interface on the cut, scheduled, worker-run graph.

An Executor runs one micro-batch over one thread per device. `forward` and `backward` are two halves
of the same checked schedule: each half sends and receives all messages whose senders are in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from partitioner.placement.group2ctx import Groups
from runtime.backends.device.arrays import fill, is_on_gpu
from runtime.frontends.mxnet.arguments import GradReq, arrays_by_name, grad_requests, host_array
from runtime.frontends.mxnet.bound_network import BindRequest, BoundNetwork, PlannedNetwork
from runtime.frontends.mxnet.internals_watch import (
    Active,
    Callback,
    InternalsWatch,
    always,
    gradient_names,
)
from runtime.frontends.mxnet.parameter_store import ParameterStore
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.transports import ThreadCluster
from symgraph.core.context import Context, current_context, require_context
from symgraph.core.errors import GraphError, nearest
from symgraph.core.html import paragraph, together
from symgraph.core.types import Array, Shape, TensorType, is_float
from symgraph.core.units import count_text
from symgraph.frontend.ndarray import NDArray, viewed
from symgraph.frontend.symbol import Symbol
from symgraph.passes.precision import FLOAT32

Types = dict[str, TensorType]


class Gradients(dict[str, Array]):
    """Arrays of gradients by argument; None for an argument that has none."""

    def __init__(self, arrays: Mapping[str, Array], arguments: Iterable[str]) -> None:
        super().__init__(arrays)
        self._arguments = frozenset(arguments)

    def __missing__(self, name: str) -> None:
        if name not in self._arguments:
            raise KeyError(name)


class Executor:
    """A bound symbol: arrays for every argument, and the machinery to run it (MXNet Executor).

    The arrays are numpy's, as `nd.NDArray`, on a CPU, and CuPy's on a GPU: each lies on the device
    on which its variable or output is placed, but that of a parameter in shards is whole, on the
    host.
    Assign to arguments in place: `executor.arg_dict["w"][:] = x`, which on a GPU takes numbers and
    CuPy's arrays, while `forward`, `backward` and `copy_params_from` take any. Use it as a context
    manager, or call `close`, to end its threads at once.
    """

    #: Argument -> array.
    arg_dict: dict[str, Array]
    #: Argument -> array of its gradient; None for one that has none, because its grad_req is null.
    grad_dict: dict[str, Array]
    #: Auxiliary state -> array.
    aux_dict: dict[str, Array]
    #: Argument -> what `backward` does with its gradient: null, write or add.
    grad_req: dict[str, str]
    #: The outputs: zeros until `forward` writes to them, each time to the same arrays.
    outputs: list[Array]

    def __init__(
        self,
        network: PlannedNetwork,
        args: dict[str, Array],
        grads: dict[str, Array],
        aux: dict[str, Array],
    ) -> None:
        """Start the threads; arrays: used and not copied."""
        self.symbol = network.symbol
        self._placement = network.placement
        self.arg_dict, self.aux_dict = self._viewed(args), self._viewed(aux)
        self.grad_dict = Gradients(self._viewed(grads), args)
        self.grad_req = dict(network.request.requests)
        ranks = len(network.training.devices)
        self._store = ParameterStore(ThreadCluster(ranks), trains=False)
        self._store.use(_plain(args | aux), _plain(grads))
        self._network = BoundNetwork(network, self._store)
        self._network.prepare()
        self._outputs = self._network.new_outputs()
        self.outputs = [viewed(a) for a in self._outputs]

    def __repr__(self) -> str:
        count = count_text(len(self.arg_dict), "argument")
        return f"<Executor of {self.symbol!r}: {count}, {self.plan!r}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.plan}"

    def _repr_html_(self) -> str:
        """Return the same as HTML, for notebooks."""
        return together(paragraph([repr(self)]), self.plan._repr_html_())

    @property
    def plan(self) -> Plan:
        """The plan with gradients: placement, schedule, memory."""
        return self._network.plan

    # -- running -----------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **inputs: Any) -> list[Array]:
        """Compute the outputs; keywords are new values of arguments, copied in."""
        for name, value in inputs.items():
            if name not in self.arg_dict:
                known = nearest(name, self.arg_dict)
                raise GraphError(f"forward: no argument {name!r}; {known}")
            self._assign("forward", self.arg_dict, name, value)
        self._network.catch_up()
        self._store.refresh()
        self._network.forward({}, is_train)
        self._network.write_outputs(self._outputs)
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients of the last forward, once.

        Args:
            out_grads: One array per output that is not a loss, in a list in the order of all
                outputs, by name, or an array for a single output. Entries for losses are ignored
                and may be None.
            is_train: Accepted without effect: the gradients are those of what the last forward
                computed, in training or not.
        """
        self._network.backward(out_grads)

    @property
    def seed(self) -> int:
        """The key of dropout and random operators; setting it makes them begin anew.

        By default it is that of `mx.random.seed`, wherever that is called.
        """
        return self._store.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._store.seed = seed

    def _assign(self, what: str, table: dict[str, Array], name: str, value: Any) -> None:
        """Give an array of a table new values; GraphError if they do not fit."""
        if not is_on_gpu(value):
            value = host_array(what, name, value)
        if value.shape != table[name].shape:
            raise GraphError(f"{what}: {name!r} has shape {value.shape}, not {table[name].shape}")
        fill(self._placement.of(name), table[name], value)

    def _viewed(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays as `nd.NDArray`s; those that are already stay the same objects."""
        given = {name: isinstance(array, NDArray) for name, array in arrays.items()}
        context = self._placement.context
        return {n: a if given[n] else viewed(a, context(n)) for n, a in arrays.items()}

    # -- looking -----------------------------------------------------------------------------

    @property
    def arg_arrays(self) -> list[Array]:
        """The arrays of arg_dict, in the order of `list_arguments`."""
        return [self.arg_dict[name] for name in self.symbol.list_arguments()]

    @property
    def grad_arrays(self) -> list[Array | None]:
        """The arrays of grad_dict, likewise; None for arguments whose grad_req is null."""
        return [self.grad_dict.get(name) for name in self.symbol.list_arguments()]

    @property
    def aux_arrays(self) -> list[Array]:
        """The arrays of aux_dict, in the order of `list_auxiliary_states`."""
        return [self.aux_dict[name] for name in self.symbol.list_auxiliary_states()]

    @property
    def output_dict(self) -> dict[str, Array]:
        """The outputs of the last forward by name."""
        names = self.symbol.list_outputs()
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise GraphError(f"two outputs are named {twice!r}: take them from `outputs`")
        return dict(zip(names, self.outputs, strict=True))

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Any
    ) -> Executor:
        """Bind the same network to other shapes of some arguments (MXNet reshape).

        Arrays and outputs share the memory of this Executor's: the first elements, if there are
        fewer now. Those that grow are zeros.

        Args:
            partial_shaping: Whether arguments that are not named may change their shapes.
            allow_up_sizing: Accepted without effect.
            shapes: Argument -> shape.

        Raises:
            GraphError: An argument that is not named changes its shape.
        """
        inferred = self.symbol.infer_shape(**shapes)
        new = dict(zip(self.symbol.list_arguments(), inferred[0], strict=True))
        new |= dict(zip(self.symbol.list_auxiliary_states(), inferred[2], strict=True))
        old = self.arg_dict | self.aux_dict
        for name, shape in new.items():
            if shape != old[name].shape and name not in shapes and not partial_shaping:
                raise GraphError(
                    f"reshape: {name!r} changes from {old[name].shape} to {shape}: give its shape "
                    "as well, or partial_shaping=True"
                )

        def kept(table: dict[str, Array]) -> dict[str, Array]:
            types = {n: TensorType(new[n], a.dtype.name) for n, a in table.items()}
            larger = {n: t for n, t in types.items() if t.size > table[n].size}
            fit = {n: _first(a, new[n]) for n, a in table.items() if n not in larger}
            return fit | self._placement.zeros(larger)

        options = self.plan.options
        executor = bind(
            self.symbol,
            options.default,
            kept(self.arg_dict),
            kept(self.grad_dict),
            self.grad_req,
            kept(self.aux_dict),
            options.groups,
            precision=options.precision,
        )
        for i, (old_output, output) in enumerate(zip(self.outputs, executor.outputs, strict=True)):
            if output.size <= old_output.size:
                executor.outputs[i] = executor._outputs[i] = _first(old_output, output.shape)
        return executor

    def copy_params_from(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy values into arguments and auxiliary states.

        Raises GraphError for unknown names and for other shapes.
        """
        for table, new in ((self.arg_dict, arg_params), (self.aux_dict, aux_params or {})):
            for name, value in new.items():
                if name in table:
                    self._assign("copy_params_from", table, name, value)
                elif not allow_extra_params:
                    raise GraphError(f"no parameter {name!r}; {nearest(name, table)}")

    def set_monitor_callback(
        self, callback: Callback, monitor_all: bool = False, active: Active = always
    ) -> None:
        """Call a function with the name and values of every output of every node, each pass.

        Args:
            callback: Called with (name, array) when `forward` begins.
            monitor_all: Whether what each node reads is shown as well, as `<node>_<input>`.
            active: Asked before each pass whether to show it.
        """
        self._store.watch.close()
        self._store.watch = InternalsWatch(callback, active, inputs=monitor_all)

    def named_arrays(self) -> list[tuple[str, Array]]:
        """The arguments, auxiliary states and gradients, by name, for monitors."""
        names = gradient_names(self.symbol)
        gradients = [(names.get(n, f"{n}_backward"), a) for n, a in self.grad_dict.items()]
        return [*self.arg_dict.items(), *self.aux_dict.items(), *gradients]

    def debug_str(self) -> str:
        """The placement and communication table, every node with its stage, and the memory."""
        partition = self.plan.partition
        lines = [str(partition), ""]
        for key, body in partition.bodies.items():
            lines.append(f"body {key} on {partition.placement.devices[partition.rank(key)]}:")
            lines += [f"  {node}" for node in body.graph if not node.is_variable]
            sends = [e for e in partition.outgoing[key] if partition.crosses(e)]
            lines += [f"  send {e.tag}: {e}" for e in sends]
        size = sum(self.plan.account.arena(rank).nbytes for rank in range(partition.ranks))
        lines.append(f"Total {size >> 20} MB allocated")
        return "\n".join(lines)

    def close(self) -> None:
        """End the executor's threads; it cannot run afterwards."""
        self._store.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def simple_bind(
    symbol: Symbol,
    ctx: Context | None = None,
    grad_req: GradReq = "write",
    type_dict: Mapping[str, Any] | None = None,
    group2ctx: Groups | None = None,
    *,
    precision: str = FLOAT32,
    **shapes: Any,
) -> Executor:
    """Bind a symbol to zero arrays, from the shapes of some arguments (MXNet simple_bind).

    Args:
        symbol: The network.
        ctx: The default device; None: the current context.
        grad_req: null, write or add: for all arguments, for each in order, or by name.
        type_dict: Argument -> dtype.
        group2ctx: ctx_group -> device, or the devices of its shards.
        precision: float16 or bfloat16 keeps activations in 16 bits; all arrays are float32. The
            caller applies a loss scale, as the `grad_scale` of losses and in head gradients.
        shapes: Argument -> shape; the others are inferred.

    Raises:
        GraphError: A name is no input (MXNet ignores it).
        ShapeError: A shape cannot be inferred.
        PlacementError: A group has no device.
    """
    ctx = current_context() if ctx is None else ctx
    require_context("simple_bind: ctx", ctx)
    known = symbol.list_inputs()
    for name in shapes:
        if name not in known:
            raise GraphError(f"simple_bind: no argument {name!r}; {nearest(name, known)}")
    inputs = {n: s for n, s in shapes.items() if s is not None}
    arg_shapes, _, aux_shapes = symbol.infer_shape(**inputs)
    arg_types, _, aux_types = symbol.infer_type(**(type_dict or {}))
    args = _types(symbol.list_arguments(), arg_shapes, arg_types)
    aux = _types(symbol.list_auxiliary_states(), aux_shapes, aux_types)
    requests = grad_requests(grad_req, args)
    requests |= {n: "null" for n, type_ in args.items() if not is_float(type_.dtype)}
    options = Options(groups=group2ctx, default=ctx, precision=precision)
    network = _network(symbol, options, args | aux, requests)
    trained = {n: t for n, t in args.items() if requests[n] != "null"}
    zeros = network.placement.zeros
    return Executor(network, zeros(args), zeros(trained), zeros(aux))


def bind(
    symbol: Symbol,
    ctx: Context | None,
    args: Sequence[Any] | Mapping[str, Any],
    args_grad: Sequence[Any] | Mapping[str, Any] | None = None,
    grad_req: GradReq = "write",
    aux_states: Sequence[Any] | Mapping[str, Any] | None = None,
    group2ctx: Groups | None = None,
    shared_exec: Executor | None = None,
    *,
    precision: str = FLOAT32,
) -> Executor:
    """Bind a symbol to the caller's arrays, which are used and not copied (MXNet bind).

    Args:
        symbol: The network.
        ctx: The default device; None: the current context.
        args: The arrays of arguments, by name or in the order of `list_arguments`. By name, there
            may be others among them.
        args_grad: The arrays of gradients, likewise; None for those that are not wanted.
        grad_req: null, write or add: for all arguments, for each in order, or by name.
        aux_states: The arrays of `list_auxiliary_states`, likewise.
        group2ctx: ctx_group -> device, or the devices of its shards.
        shared_exec: Ignored: an executor has memory of its own for what it computes on the way.
        precision: See `simple_bind`.

    Raises:
        GraphError: An array is missing, a gradient has a name that `args` lacks, or an array does
            not lie on its variable's device (on a GPU: an array of CuPy on that GPU). It is a
            ValueError.
    """
    ctx = current_context() if ctx is None else ctx
    require_context("bind: ctx", ctx)
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    arrays = arrays_by_name("args", args, names)
    aux = arrays_by_name("aux_states", aux_states if aux_states is not None else {}, states)
    requests = grad_requests(grad_req, arrays)
    known = [*names, *args] if isinstance(args, Mapping) else names
    grads = {} if args_grad is None else arrays_by_name("args_grad", args_grad, names, known)
    requests = {n: r if n in grads else "null" for n, r in requests.items()}
    wanted = {n: g for n, g in grads.items() if requests[n] != "null"}
    _require_gradients(wanted, arrays)
    types = {n: TensorType(a.shape, a.dtype.name) for n, a in (arrays | aux).items()}
    options = Options(groups=group2ctx, default=ctx, precision=precision)
    network = _network(symbol, options, types, requests)
    for what, table in (("args", arrays), ("args_grad", wanted), ("aux_states", aux)):
        network.placement.require(f"bind: `{what}`", table)
    return Executor(network, arrays, grads, aux)


def _require_gradients(grads: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """GraphError for an array that cannot take the gradient of its argument."""
    for name, gradient in grads.items():
        if gradient.shape != arrays[name].shape or gradient.dtype != arrays[name].dtype:
            raise GraphError(
                f"bind: the gradient array of {name!r} is {gradient.dtype}{gradient.shape}, "
                f"not {arrays[name].dtype}{arrays[name].shape}"
            )
        if isinstance(gradient, np.ndarray) and not gradient.flags.writeable:
            raise GraphError(f"bind: the gradient array of {name!r} is read-only")


def _network(
    symbol: Symbol, options: Options, types: Types, requests: Mapping[str, str]
) -> PlannedNetwork:
    """Plan a network; types: of arguments and states."""
    request = BindRequest(
        requests,
        trains=True,
        shapes={name: shape for name, (shape, _) in types.items()},
        dtypes={name: dtype for name, (_, dtype) in types.items()},
    )
    return PlannedNetwork(symbol, request, options)


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays as numpy's own, on the same memory."""
    return {n: np.asarray(a) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def _first(array: Array, shape: Shape) -> Array:
    """An array's first elements in a shape, on its memory; itself if that is its shape."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _types(names: Sequence[str], shapes: Sequence[Any], dtypes: Sequence[Any]) -> Types:
    columns = zip(names, shapes, dtypes, strict=True)
    return {name: TensorType(shape, dtype.name) for name, shape, dtype in columns}
