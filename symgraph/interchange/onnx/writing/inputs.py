"""The inputs of an exported model: their shapes, dtypes and the lengths that are left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from symgraph.core.errors import GraphError, nearest
from symgraph.core.params import literal
from symgraph.core.types import Array, dtype_name
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import SymNode, walk
from symgraph.interchange.onnx.writing.lengths import NamedShape

BATCH = "batch"
TRIAL = 2  # samples for which a network is lowered if its batch is left open and nothing says more


class Inputs(NamedTuple):
    """What is known of a model's inputs."""

    #: Variable -> its shape, with a name for each length that is left open.
    shapes: dict[str, NamedShape]
    #: Name -> a length to lower the network for.
    sizes: dict[str, int]
    #: Variable -> its dtype.
    dtypes: dict[str, str]


def inputs_of(
    network: Symbol,
    params: Mapping[str, Array],
    shapes: Any,
    dtypes: Any,
    opened: Any,
) -> Inputs:
    """Put together what the user says of a network's inputs and what its variables say.

    Args:
        network: The network.
        params: The variables that are not inputs.
        shapes: Shapes by name or in order; None: those of the variables.
        dtypes: Dtypes by name or in order, or one for all; None: what follows.
        opened: Shapes with None or a name for each length to leave open, by name or in order; ():
            batch axes; None: none but those of `shapes`.

    Raises:
        GraphError: The inputs are others, or say different things of one length.
    """
    nodes = {n.name: n for n in walk(network.entries) if n.op is None and n.name not in params}
    labels = _labels(network)
    given = _by_name(nodes, labels, shapes, "in_shapes")
    spelt = _by_name(nodes, labels, opened or None, "dynamic_input_shapes")
    found = Inputs({}, {}, _dtypes(nodes, labels, dtypes, given))
    for name, node in nodes.items():
        shape = given.get(name, _hint(node))
        if shape is None:
            continue
        places = _open_places(node, shape, spelt.get(name), batch=opened == ())
        lengths = [_length(name, d) for d in shape]
        found.shapes[name] = tuple(places.get(axis, length) for axis, length in enumerate(lengths))
        for axis, place in places.items():
            _agree(found.sizes, name, place, lengths[axis])
    found.sizes.update({n: max(TRIAL, size) for n, size in found.sizes.items()})
    return found


def _labels(network: Symbol) -> set[str]:
    """Return the variables that only losses read, as labels."""
    labels: set[str] = set()
    others: set[str] = {e.node.name for e in network.entries}
    for node in walk(network.entries):
        for name, entry in zip(node.input_names, node.inputs, strict=True):
            is_label = name == "label" and node.is_loss
            (labels if is_label else others).add(entry.node.name)
    return labels - others


def _by_name(
    nodes: Mapping[str, SymNode], labels: set[str], given: Any, what: str
) -> dict[str, Any]:
    """Return values by input, which the user may give in order, with or without labels."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for name in given:
            if name not in nodes:
                raise GraphError(f"{what}: no input {name!r}; {nearest(name, nodes)}")
        return dict(given)
    values, names = [*given], [*nodes]
    if len(values) == len(names):
        return dict(zip(names, values, strict=True))
    unlabelled = [name for name in names if name not in labels]
    if len(values) == len(unlabelled):
        return dict(zip(unlabelled, values, strict=True))
    listed = ", ".join(map(repr, names))
    raise GraphError(
        f"{what} has {len(values)} entries, but the variables that have no value in params are "
        f"{listed}"
    )


def _dtypes(
    nodes: Mapping[str, SymNode], labels: set[str], given: Any, shapes: Mapping[str, Any]
) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, (Mapping, list, tuple)):
        given = dict.fromkeys(shapes or nodes, given)
    by_name = _by_name(nodes, labels, given, "in_types")
    try:
        return {name: dtype_name(dtype) for name, dtype in by_name.items()}
    except KeyError as error:
        raise GraphError(f"in_types: no dtype {error.args[0]!r}") from None


def _hint(node: SymNode) -> Sequence[Any] | None:
    text = node.attrs.get("__shape__")
    return None if text is None else literal(text)


def _length(name: str, raw: Any) -> int:
    """Return a length; 0 for one that is left open."""
    if raw is None or isinstance(raw, str) or raw == -1:
        return 0
    if not hasattr(raw, "__index__") or raw < 0:
        raise GraphError(f"in_shapes: {name!r} has a length {raw!r}, which is no number")
    return int(raw)


def _open_places(
    node: SymNode, shape: Sequence[Any], spelt: Sequence[Any] | None, *, batch: bool
) -> dict[int, str]:
    """Return the axes whose lengths are left open, with the names of these lengths."""
    at = max(node.attrs.get("__layout__", "N").find("N"), 0)
    if spelt is not None and len(spelt) != len(shape):
        raise GraphError(
            f"dynamic_input_shapes: {node.name!r} has {len(spelt)} axes, but {len(shape)} in "
            "in_shapes"
        )
    places = {}
    for axis, given in enumerate(shape):
        said = given if spelt is None else spelt[axis]
        if isinstance(said, str):
            places[axis] = said
        elif said in (None, 0, -1) or (batch and axis == at):
            places[axis] = BATCH if axis == at else f"{node.name}_{axis}"
    return places


def _agree(sizes: dict[str, int], name: str, place: str, length: int) -> None:
    known = sizes.setdefault(place, length)
    if known and length and known != length:
        raise GraphError(
            f"the length {place!r} is {length} in {name!r} but {known} in another input; say which "
            "axes are left open, as in dynamic_input_shapes=[(20, None)], or the variable's "
            "__layout__, such as 'TN'"
        )
    sizes[place] = known or length
