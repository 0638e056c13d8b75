"""Arguments of MXNet's interfaces: what callers of bind, init_params and the like may give.

Arrays by name, requests for gradients, descriptions of inputs: checked, and in one form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from runtime.backends.device.arrays import is_array, on_host
from symgraph.core.errors import ConfigError, GraphError, ShapeError, nearest
from symgraph.core.types import BFLOAT16, DTYPES, Array, Shape, TensorType
from symgraph.frontend import optimizer as optimizers
from symgraph.frontend.init import AnyInitializer, create
from symgraph.frontend.io import DataBatch, DataDesc, describe
from symgraph.frontend.kvstore import KVStore, create_store
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

REQUESTS = ("null", "write", "add")
GradReq = str | Sequence[str] | Mapping[str, str]


# -- arrays --------------------------------------------------------------------------------------


def arrays_by_name(
    what: str,
    values: Sequence[Any] | Mapping[str, Any],
    names: list[str],
    others: Collection[str] | None = None,
) -> dict[str, Array]:
    """Check arrays and return them by name, in the order of `names`.

    Args:
        what: The name of the argument that they are given as.
        values: The arrays, by name or in order; None is no array. Scripts share a table
            among networks, so others may be in it.
        names: The names.
        others: If some may be missing: the names that others may have.
    """
    if isinstance(values, Mapping):
        arrays = {n: a for n, a in values.items() if a is not None}
    elif len(values) == len(names):
        arrays = {n: a for n, a in zip(names, values, strict=True) if a is not None}
    else:
        raise GraphError(f"bind: {len(values)} arrays in `{what}` for {len(names)} names")
    unknown = [n for n in arrays if n not in names]
    for name in unknown:
        if others is not None and name not in others:
            raise GraphError(f"bind: `{what}` has {name!r}; {nearest(name, names)}")
    missing = [n for n in names if n not in arrays]
    if missing and others is None:
        given = f", which has {', '.join(map(repr, unknown))} besides" if unknown else ""
        raise GraphError(f"bind: key {missing[0]!r} is missing in `{what}`{given}")
    arrays = {n: arrays[n] for n in names if n in arrays}
    for name, array in arrays.items():
        if not is_array(array) or array.dtype.name not in DTYPES:
            raise TypeError(f"bind: {name!r} in `{what}` is not a numpy array of a known dtype")
        if not array.size:
            raise GraphError(f"bind: {name!r} in `{what}` has no elements: {array.shape}")
    return arrays


def host_array(what: str, name: str, value: Any) -> Array:
    """Convert anything to an array of numbers; GraphError, naming it, if that is impossible."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise GraphError(f"{what}: {name!r} is not an array: {error}") from error
    if array.dtype.kind not in "biuf" and array.dtype.name not in (*DTYPES, BFLOAT16):
        raise GraphError(f"{what}: {name!r} holds no numbers, but {array.dtype}")
    return array


# -- gradients -----------------------------------------------------------------------------------


def grad_requests(
    grad_req: GradReq, names: Collection[str], what: str = "argument"
) -> dict[str, str]:
    """Check what to do with the gradient of each variable: null, write or add.

    Args:
        grad_req: One request for all; or a list, in the order of `names`; or some by name, where
            the others are null.
        names: The variables.
        what: What the variables are called in errors.

    Raises:
        GraphError: An unknown name or request, or a list of another length.
    """
    if isinstance(grad_req, str):
        table = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        for name in grad_req:
            if name not in names:
                raise GraphError(f"grad_req: no {what} {name!r}; {nearest(name, names)}")
        table = {n: grad_req.get(n, "null") for n in names}
    elif not isinstance(grad_req, Sequence):
        raise GraphError(f"grad_req is {grad_req!r}; {nearest('', REQUESTS)}")
    elif len(grad_req) == len(names):
        table = dict(zip(names, grad_req, strict=True))
    else:
        raise GraphError(f"grad_req has {len(grad_req)} entries for {len(names)} {what}s")
    for name, request in table.items():
        if request not in REQUESTS:
            raise GraphError(f"grad_req of {name!r}: {request!r}; {nearest(request, REQUESTS)}")
    return table


# -- names and shapes of inputs ------------------------------------------------------------------


def known_names(what: str, names: Sequence[str] | None, arguments: Sequence[str]) -> list[str]:
    """Check a list of names; GraphError for one that is no argument."""
    if isinstance(names, str):
        raise TypeError(f"{what} is a list of names, not the name {names!r}")
    for name in names or ():
        if name not in arguments:
            raise GraphError(f"{what}: no argument {name!r}; {nearest(name, arguments)}")
    return list(names or ())


def known_labels(names: Sequence[str] | None, arguments: Sequence[str], logger: Any) -> list[str]:
    """The labels that are arguments: a network that is not trained may have none.

    A warning names any others, as in MXNet, except MXNet's default name.
    """
    if isinstance(names, str):
        raise TypeError(f"label_names is a list of names, not the name {names!r}")
    for name in names or ():
        if name not in arguments and name != "softmax_label":
            logger.warning("label_names: no argument %r; %s", name, nearest(name, arguments))
    return [name for name in names or () if name in arguments]


def descriptions(what: str, given: Sequence[Any] | None) -> list[DataDesc]:
    """Convert descriptions of inputs to DataDescs; TypeError if they are no list."""
    if given is not None and not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list of DataDescs, or of (name, shape), not {given!r}")
    return [describe(d) for d in given or ()]


def require_names(
    what: str, descs: Sequence[DataDesc], names: Sequence[str], *, others: bool = False
) -> None:
    """GraphError unless exactly these inputs are described; others: whether more may be."""
    described = [d.name for d in descs]
    if sorted(n for n in described if not others or n in names) != sorted(names):
        raise GraphError(f"{what} describes {described}, but the module's names are {list(names)}")


def argument_types(symbol: Symbol, feeds: Mapping[str, Feed]) -> dict[str, TensorType]:
    """Infer the types of arguments and auxiliary states from those of inputs."""
    shapes = symbol.infer_shape(**{name: feed.type.shape for name, feed in feeds.items()})
    dtypes = symbol.infer_type(**{name: feed.type.dtype for name, feed in feeds.items()})
    names = symbol.list_arguments(), (), symbol.list_auxiliary_states()
    return {
        name: TensorType(shape, dtype.name)
        for which in (0, 2)
        for name, shape, dtype in zip(names[which], shapes[which], dtypes[which], strict=True)
    }


def guessed_input(name: str, shape: Shape, data: Sequence[DataDesc]) -> Feed:
    """The type of a label or state without description: samples lie along the data's batch axis."""
    feed = data[0].feed
    size = feed.type.shape[feed.axis]
    if shape[feed.axis : feed.axis + 1] != (size,):
        raise ShapeError(
            f"input {name!r} of shape {shape} does not have the batch of {size} along axis "
            f"{feed.axis}: describe it in label_shapes"
        )
    return DataDesc(name, shape, "float32", "T" * feed.axis + "N").feed


def match_arrays(
    what: str, bound: Sequence[DataDesc], arrays: Sequence[Any], provided: Sequence[Any]
) -> list[tuple[DataDesc, Any]]:
    """Match the arrays of a batch with descriptions.

    Args:
        what: data or label.
        bound: The descriptions that the module is bound to.
        arrays: Arrays, also on GPUs, or lists.
        provided: The batch's own descriptions; empty: the bound ones, in order.

    Returns:
        Each description, with the array's shape, and the array on the host.
    """
    descs = [describe(d) for d in provided or bound]
    if not arrays or not descs:  # labels that are not given, or not wanted
        return []
    if len(descs) != len(arrays):
        raise GraphError(f"a batch has {len(arrays)} {what} arrays for {[d.name for d in descs]}")
    pairs = [
        (DataDesc(d.name, a.shape, d.dtype, d.layout), a)
        for d, a in zip(descs, map(on_host, arrays), strict=True)
    ]
    for desc, array in pairs:
        if not array.size:
            raise ShapeError(f"{what} {desc.name!r} of a batch has no elements: {desc.shape}")
    return pairs


def as_batch(batch: Any) -> DataBatch:
    """Return a DataBatch unchanged, or make one of an object that has `data`.

    Raises TypeError for an object that has none.
    """
    if isinstance(batch, DataBatch):
        return batch
    if not hasattr(batch, "data") or isinstance(batch, np.ndarray):
        raise TypeError(
            "a batch is an io.DataBatch, or another object with a list of arrays named data, not "
            f"a {type(batch).__name__}"
        )
    known = {f.name: getattr(batch, f.name) for f in fields(DataBatch) if hasattr(batch, f.name)}
    return DataBatch(**known)


# -- first values and optimizers -----------------------------------------------------------------


def create_initializer(
    initializer: AnyInitializer | str | None, given: Mapping[str, Any] | None
) -> AnyInitializer | None:
    """Create an initializer by name; None if values are given, else ConfigError without one."""
    if initializer is None and given is None:
        raise ConfigError("init_params: there is neither an initializer nor arg_params")
    return None if initializer is None else create(initializer)


def create_optimizer(
    kvstore: str | KVStore | None,
    optimizer: str | Optimizer,
    settings: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
    data: DataDesc,
) -> Optimizer:
    """Create an optimizer by name, or check an object.

    One by name divides gradients by the batch's size unless the settings say otherwise.

    Raises:
        ConfigError: An unknown name, store or setting.
        TypeError: An object that is no optimizer.
    """
    if kvstore is not None:
        create_store(kvstore)
    if isinstance(optimizer, str):
        rescale = 1.0 / data.shape[data.feed.axis]
        return optimizers.create(optimizer, **{"rescale_grad": rescale, **dict(settings or ())})
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be one of symgraph.optimizer, not {optimizer!r}")
    return optimizer
