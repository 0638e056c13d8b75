"""`sg.from_torch`: the network of a PT2 archive as a Symbol of existing operators.

Calls become symbols one after another, each by its converter in CONVERTERS. Calls whose tensors are
all constants (masks, positions) are computed once, here, by the operators that they would become.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError, SymgraphError, nearest
from symgraph.core.reading import reading
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import Array
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.infer import shape_of
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager, Prefix
from symgraph.frontend.symbol import Symbol
from symgraph.interchange.torch import (
    arithmetic,
    composed,
    layers,
    losses,
    movement,
    ordering,
    resizing,
)
from symgraph.interchange.torch.archive import KIND, Archive
from symgraph.interchange.torch.call import CONVERTERS, Call, Unsupported, Value, stored
from symgraph.interchange.torch.program import Free, Node, Program, Ref, read_program
from symgraph.interchange.values import DECAYS, FROZEN

assert arithmetic
assert composed
assert layers
assert losses
assert movement
assert ordering
assert resizing  # importing them fills CONVERTERS

Arrays = dict[str, Array]
MOST_FOLDED = 1 << 28  # bytes of all values of a call that is computed at import
VIEWS = re.compile(
    r"view|reshape|_unsafe_view|flatten|unflatten|squeeze|unsqueeze|permute|transpose|t|expand"
    r"|expand_as|select|slice|narrow|split|split_with_sizes|chunk|unbind|contiguous|alias|detach"
    r"|movedim|swapaxes"
)
SAME = re.compile(r"dropout|feature_dropout|alpha_dropout|to|type_as")  # if nothing changes
STATISTICS = ("running_mean", "running_var")
NEVER = 1 << 62
NO_GRAD = "higher_order.wrap_with_set_grad_enabled"


def from_torch(
    file: str | os.PathLike[str], shapes: Mapping[str, Any] | None = None
) -> tuple[Symbol, Arrays, Arrays]:
    """Read a network that `torch.export.save` has written, without PyTorch.

    Inputs are variables with the names of forward's arguments; their `__shape__` has 0 for the
    batch. Parameters have the names of the module's state_dict. The outputs are those of forward.

    Args:
        file: the `.pt2` file of PyTorch 2.6 or newer.
        shapes: shapes of inputs by name, for networks with several dynamic dimensions. 0 stands for
            the batch; any other dynamic dimension has the stated length, or if none is stated that
            of the exported example.

    Returns:
        The symbol, its parameters, and its auxiliary states (the statistics of batch norm).

    Raises:
        ConfigError: for a file that is not such an archive, or a network with operators or options
            that are not supported; the message lists them all.
    """
    with reading(file, KIND):
        stated = {name: shape_of(name, shape) for name, shape in (shapes or {}).items()}
        with Archive(file) as archive:
            program = read_program(archive.network(), stated)
            tensors = archive.tensors()
        with NameManager(), AttrScope():
            return _Importer(program, tensors).run()


class _Importer:
    """The values of a network on their way to symbols."""

    def __init__(self, program: Program, tensors: Mapping[str, tuple[Hashable, Array]]) -> None:
        self._program = program
        self._values: dict[str, Value] = {}
        self._args: Arrays = {}
        self._aux: Arrays = {}
        # Tensors that share their memory: the first of them -> all, and whether they are equal.
        self._roots: dict[str, str] = {}
        self._shares: dict[str, list[tuple[str, bool]]] = {}
        self._last: dict[str, int] = dict.fromkeys(program.outputs, NEVER)
        for at, node in enumerate(program.nodes):
            self._last |= dict.fromkeys(node.reads, at)
        self._changed: dict[str, str] = {}  # what a call in place has changed -> its name
        self._begin(tensors)

    def _begin(self, tensors: Mapping[str, tuple[Hashable, Array]]) -> None:
        """Make variables of inputs and parameters, and constants of buffers."""
        by_place: dict[Any, Value] = {}
        for kind, name, target in self._program.inputs:
            meta = self._meta(name)
            if kind == "user_input":
                self._values[name] = self._fed(name)
                continue
            if target not in tensors:
                raise ConfigError(f"has no bytes for {target!r}; {nearest(target, tensors)}")
            place, array = tensors[target]
            if (array.shape, str(array.dtype)) != (meta.shape, meta.dtype):
                raise ConfigError(
                    f"{target!r} is {meta.dtype}{list(meta.shape)} in the network, but "
                    f"{array.dtype}{list(array.shape)} among the weights"
                )
            if kind == "parameter":  # one variable for tied ones
                key = place, array.shape
                if key not in by_place:
                    by_place[key] = Value(meta, self._parameter(name, target, array))
                self._values[name] = by_place[key]
            else:
                self._values[name] = Value(meta, array=array, name=target)

    def _parameter(self, name: str, target: str, array: Array) -> Symbol:
        """Return a parameter, which decays by any name; training leaves frozen ones alone."""
        array = array if array.shape else array.reshape(1)
        if name in self._program.frozen:
            return self._fixed(target, array)
        self._args[target] = array
        return sym.Variable(target, DECAYS, shape=array.shape, dtype=str(array.dtype))

    def _meta(self, name: str) -> Any:
        if name not in self._program.metas:
            raise ConfigError(f"the type of {name!r} is missing")
        return self._program.metas[name]

    def _fed(self, name: str) -> Value:
        meta = self._meta(name)
        if not meta.shape:
            raise ConfigError(f"input {name!r} is a single number: give it an axis")
        free = [axis for axis, d in enumerate(meta.shape) if isinstance(d, Free)]
        if any(d == 0 for d in meta.shape):
            raise ConfigError(f"input {name!r} of shape {tuple(meta.shape)} is empty")
        shape = tuple(0 if isinstance(d, Free) else d for d in meta.shape)
        letters = "".join("N" if axis in free else "C" for axis in range(len(shape)))
        layout = {"__layout__": letters} if free else None
        variable = sym.Variable(name, layout, shape=shape, dtype=meta.dtype)
        if meta.dtype == "bool":
            return Value(meta, sym.Cast(variable, dtype=stored("bool"), name=f"{name}_cast"))
        return Value(meta, variable)

    def run(self) -> tuple[Symbol, Arrays, Arrays]:
        self._require_known()
        for at, node in enumerate(self._program.nodes):
            if not any(node.outputs):
                continue  # a check, or arithmetic on sizes
            try:
                self._convert(node, at)
            except Unsupported as error:
                raise ConfigError(f"{node.target} {node.name!r}: {error}") from None
            except SymgraphError as error:
                raise type(error)(f"{node.target} {node.name!r}: {error}") from None
        self._require_kept()
        outputs = [self._symbol(self._value(name)) for name in self._program.outputs]
        network = sym.Group(outputs) if len(outputs) > 1 else outputs[0]
        network.infer_shape_partial()  # raises an error for shapes that contradict each other
        arguments, states = network.list_arguments(), network.list_auxiliary_states()
        return (
            network,
            {name: array for name, array in self._args.items() if name in arguments},
            {name: array for name, array in self._aux.items() if name in states},
        )

    def _require_known(self) -> None:
        """Raise ConfigError that lists all operators that are missing."""
        missing: dict[str, list[str]] = {}
        for node in self._program.nodes:
            if any(node.outputs) and _converter(node.target) is None:
                missing.setdefault(node.target, []).append(node.name)
        if NO_GRAD in missing:
            raise ConfigError(
                f"torch.no_grad() ({missing[NO_GRAD][0]!r}) is not supported: write .detach() "
                "behind what it computes (run_decompositions() drops it and lets gradients pass)"
            )
        if missing:
            listed = [f"{t} ({names[0]!r}, {len(names)} in all)" for t, names in missing.items()]
            several = "operators are" if len(missing) > 1 else "operator is"
            other = ", or export it with program.run_decompositions()"
            raise ConfigError(
                f"{len(missing)} {several} not supported: {'; '.join(listed)}; write the module "
                f"with others{'' if self._program.decomposed else other}"
            )

    def _require_kept(self) -> None:
        """Raise ConfigError if a buffer or parameter changes that the network reads."""
        outer = {i.name: i for i in self._program.inputs if i.kind in ("buffer", "parameter")}
        names = {i.target: name for name, i in outer.items()}
        needed = self._needed()
        changed = {name: {name} for name in outer if name in self._changed}
        for tensor, target in self._program.mutations.items():
            value = self._values.get(tensor)
            if target not in self._aux and (value is None or value.array is None):
                needed.add(tensor)  # it depends on the network's inputs
            changed.setdefault(names.get(target, target), set()).add(tensor)
        for name, states in changed.items():
            if needed & {name, *states}:
                kind, _, target = outer.get(name, ("buffer", name, name))
                raise ConfigError(
                    f"{kind} {target!r} changes in the forward pass, which only those of batch "
                    "norm may" + (", if nothing else reads them" if target in self._aux else "")
                )

    def _needed(self) -> set[str]:
        """Return what the outputs are computed from, besides the statistics of batch norm.

        Tensors that share their memory count as the first of them.
        """
        roots = self._roots
        needed = {roots.get(name, name) for name in self._program.outputs}
        for node in reversed(self._program.nodes):
            if any(roots.get(name, name) in needed for name in node.outputs if name):
                found = {*node.reads} - {node.args.get(name) for name in STATISTICS}
                needed |= {roots.get(name, name) for name in found}
        return needed

    # -- one call ------------------------------------------------------------------------------

    def _convert(self, node: Node, at: int) -> None:
        found = _converter(node.target)
        assert found is not None
        convert, in_place = found
        reads = [self._value(name) for name in node.reads]
        metas = [self._meta(name) if name else None for name in node.outputs]
        with Prefix(f"{node.name}_"):
            fixed = not any(isinstance(d, Free) for m in metas if m for d in m.shape)
            fold = fixed and reads and all(v.array is not None for v in reads)
            call = Call(self, node, metas)
            made = self._folded(call, convert) if fold else convert(call)
        made = made if isinstance(made, (list, tuple, Symbol)) else [made]
        for at_output, (name, value) in enumerate(zip_longest(node.outputs, made)):
            if name is not None and value is not None:
                self._values[name] = (
                    value if isinstance(value, Value) else Value(self._meta(name), value)
                )
            elif name in self._last:
                raise Unsupported(f"its output {at_output}, {name!r}, is not supported, but read")
        if "batch_norm" in node.target and node.args.get("training"):
            self._note_statistics(node)
        first = node.args.get("self", node.args.get("input"))
        if isinstance(first, Ref):
            self._share(node, first, at, in_place)

    def _note_statistics(self, node: Node) -> None:
        """Note that batch norm changes statistics; their next values may be its last outputs."""
        for name, after in zip_longest(STATISTICS, node.outputs[3:5]):
            before = node.args.get(name)
            if isinstance(before, Ref):
                root = self._roots.get(before, before)
                self._changed[root] = node.name
                if after is not None:
                    self._roots[after] = root
                    self._shares.setdefault(root, [(root, True)]).append((after, True))

    def _folded(self, call: Call, convert: Any) -> Any:
        """Compute a call on constants, by the operators that it becomes."""
        reads = {name: self._value(name) for name in call.node.reads}
        feeds = {f"fold_{name}": value.as_array() for name, value in reads.items()}
        for name, value in reads.items():
            shape = feeds[f"fold_{name}"].shape
            variable = sym.Variable(f"fold_{name}", shape=shape, dtype=stored(value.meta.dtype))
            self._values[name] = Value(value.meta, variable)
        stands = {name: self._values[name] for name in reads}
        try:
            made = convert(call)
        finally:
            self._values |= reads
        if isinstance(made, Value):  # one of the constants itself, or a new one
            return next((reads[n] for n, value in stands.items() if value is made), made)
        symbol = made if isinstance(made, Symbol) else sym.Group([m for m in made if m is not None])
        feeds |= self._args
        known = {name: feeds[name] for name in symbol.list_inputs()}
        dtypes = {name: str(array.dtype) for name, array in known.items()}
        graph = lower(symbol, {name: array.shape for name, array in known.items()}, dtypes)
        if sum(t.nbytes for node in graph for t in node.types) > MOST_FOLDED:
            call.fail("its constants are too large")
        arrays = evaluate(graph, known, Env())
        metas = [meta for meta in call.metas if meta is not None]
        return [
            Value(meta, array=array.reshape(meta.shape))
            for meta, array in zip(metas, arrays, strict=False)
        ]

    def _share(self, node: Node, first: str, at: int, in_place: bool) -> None:
        """Note what shares the memory of the first input; let a call in place change them all."""
        output = node.outputs[0]
        base = node.target.split(".")[1]
        view = VIEWS.fullmatch(base) is not None
        same = SAME.fullmatch(base) is not None and not node.args.get("copy")
        same = same and output is not None and self._values[output] is self._value(first)
        if output is None or not (view or same or in_place):
            return
        root = self._roots.get(first, first)
        shares = self._shares.setdefault(root, [(root, True)])
        if in_place:
            self._changed[root] = node.name
            exact = dict(shares)[first]
            for name, whole in shares:
                if self._last.get(name, -1) > at and not (whole and exact):
                    raise Unsupported(
                        f"changes {first!r}, of which {name!r} shows a part that is read later"
                    )
                if whole:
                    self._values[name] = self._values[output]
        self._roots[output] = root
        whole = self._values[output].meta.shape == self._value(first).meta.shape
        shares.append((output, in_place or (whole and dict(shares)[first] and not view)))

    # -- what converters ask for ---------------------------------------------------------------

    def _value(self, name: str) -> Value:
        if name not in self._values:
            raise ConfigError(f"{name!r} is read before it is made")
        return self._values[name]

    def _symbol(self, value: Value) -> Symbol:
        """Return a value as a symbol; a constant becomes an operator or a fixed parameter."""
        if value.symbol is None:
            array = value.as_array()
            value.symbol = _generated(array)
        if value.symbol is None:
            name = value.name or NameManager.current().get(None, "constant")
            value.symbol = self._fixed(name, array)
        return value.symbol

    def _fixed(self, name: str, array: Array) -> Symbol:
        """Return a parameter that training leaves alone; only those of floats can be parameters."""
        dtype = str(array.dtype)
        if array.dtype.kind != "f":
            array = array.astype("float32" if (abs(array) < 1 << 24).all() else "float64")
        self._args[name] = array
        own = str(array.dtype)
        fixed = sym.Variable(name, FROZEN, shape=array.shape, dtype=own)
        fixed = sym.BlockGrad(fixed, name=f"{name}_fixed")
        return fixed if own == dtype else sym.Cast(fixed, dtype=dtype, name=f"{name}_cast")

    def _state(self, value: Value) -> Symbol:
        """Return a buffer as an auxiliary state."""
        if value.name is None:
            raise Unsupported("its statistics are not buffers of the module")
        if value.name not in self._aux:
            self._aux[value.name] = value.as_array()
            value.symbol = sym.Variable(value.name, shape=value.meta.shape, dtype=value.meta.dtype)
        assert value.symbol is not None
        return value.symbol

    def batch_like(self) -> tuple[Symbol, int, int]:
        """Return an input of users that has the batch, its axis there, and its length."""
        for kind, name, _ in self._program.inputs:
            for axis, d in enumerate(self._meta(name).shape if kind == "user_input" else ()):
                if isinstance(d, Free):
                    return self._symbol(self._values[name]), axis, int(d)
        raise Unsupported("it has the batch's length, but no input has")


def _generated(array: Array) -> Symbol | None:
    """Return an operator that makes an array of equal or evenly rising numbers, if it is one."""
    flat, dtype = array.reshape(-1), str(array.dtype)
    if not array.size:
        raise Unsupported(f"a tensor of shape {array.shape} is empty")
    if (flat == flat[0]).all():
        return sym.full(shape=array.shape, val=float(flat[0]), dtype=dtype)
    if array.dtype.kind != "i":
        return None
    first, step = int(flat[0]), int(flat[1]) - int(flat[0])
    if (flat == first + step * np.arange(array.size)).all():
        stop = first + step * array.size
        row = sym.arange(start=first, stop=stop, step=step, dtype=dtype)
        return row if array.ndim == 1 else sym.Reshape(row, shape=array.shape)
    return None


def _converter(target: str) -> Any:
    """Return the converter of an operator and whether it works in place; None if there is none."""
    space, _, rest = target.partition(".")
    base, _, overload = rest.partition(".")
    if space != "aten":
        return None
    for name in (f"{base}.{overload}", base):
        if name in CONVERTERS:
            return CONVERTERS[name], False
    plain = base.removesuffix("_")
    for name in (f"{plain}.{overload}", plain):
        if plain != base and not plain.endswith("_") and name in CONVERTERS:
            return CONVERTERS[name], True
    return None
