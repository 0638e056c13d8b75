"""What a module is bound to: devices, and the inputs by name, shape and batch axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partitioner.placement.group2ctx import Groups, devices_of
from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.arguments import REQUESTS
from runtime.planning.options import Options, require_known
from runtime.profiling.calibration.pricing import quick_prices
from symgraph.core.context import Context, cpu, require_contexts
from symgraph.core.errors import ConfigError, GraphError, ShapeError, nearest
from symgraph.core.types import Shape, TensorType
from symgraph.frontend import optimizer as optimizers
from symgraph.frontend.init import Initializer, Mixed, create
from symgraph.frontend.io import DataDesc, describe
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

STORES = (None, "local", "device")
Key = tuple[tuple[str, Feed], ...]  # the inputs that a network is bound to


def input_key(descs: Sequence[DataDesc]) -> Key:
    """What tells networks apart that are bound to other inputs."""
    return tuple([(d.name, d.feed) for d in descs])


def placed(
    options: Options,
    context: Context | Sequence[Context] | None,
    group2ctxs: Groups | Sequence[Groups] | None,
    strategy: str,
) -> Options:
    """The options with where to run; several maps are the rows of a grid, as in MXNet."""
    require_known(options.schedule, strategy)
    devices = _contexts(cpu() if context is None else context)
    maps = [group2ctxs] if isinstance(group2ctxs, Mapping) else list(group2ctxs or [])
    groups: Groups | None = maps[0] if maps else None
    if len(maps) > 1:
        rows = _rows(maps)
        return replace(
            options,
            groups=groups,
            default=rows[0][0],
            data_axis=len(rows),
            devices=tuple([device for row in rows for device in row]),
        )
    devices += [d for given in (groups or {}).values() for d in devices_of(given)]
    devices = list(dict.fromkeys(devices))
    chosen = strategy if groups is None and len(devices) > 1 else None
    return replace(
        options,
        groups=groups,
        default=devices[0],
        devices=tuple(devices),
        strategy=chosen,
        pricing=lambda graph, contexts: quick_prices(contexts),  # to bind shall not take long
    )


def _contexts(context: Context | Sequence[Context]) -> list[Context]:
    """The devices; TypeError for what is none, ConfigError if there are none."""
    given = require_contexts("context", context)
    if not given:
        raise ConfigError("context is an empty list: give one device or more")
    return list(given)


def _rows(maps: Sequence[Groups]) -> list[tuple[Context, ...]]:
    """The devices of each map, in one order. ConfigError for maps that are not copies."""
    columns = [[devices_of(given.get(group, ())) for given in maps] for group in maps[0]]
    places = list(dict.fromkeys(tuple(d for part in c for d in part) for c in columns))
    devices = [device for place in places for device in place]
    alike = all(given.keys() == maps[0].keys() for given in maps)
    if not alike or any(len(p) != len(maps) for p in places) or len({*devices}) < len(devices):
        raise ConfigError(
            f"group2ctxs has {len(maps)} maps, each for a copy of the network; they must have the "
            "same groups, each on one device, and no device in common"
        )
    return [tuple(row) for row in zip(*places, strict=True)]


def argument_types(symbol: Symbol, feeds: Mapping[str, Feed]) -> dict[str, TensorType]:
    """The types of arguments and auxiliary states; feeds: of the inputs that are known."""
    shapes = symbol.infer_shape(**{name: feed.type.shape for name, feed in feeds.items()})
    dtypes = symbol.infer_type(**{name: feed.type.dtype for name, feed in feeds.items()})
    names = symbol.list_arguments(), (), symbol.list_auxiliary_states()
    return {
        name: TensorType(shape, dtype)
        for which in (0, 2)
        for name, shape, dtype in zip(names[which], shapes[which], dtypes[which], strict=True)
    }


def described(what: str, given: Sequence[Any] | None) -> list[DataDesc]:
    """The inputs that are described; TypeError for what is no list of them."""
    if given is not None and not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list of DataDescs, or of (name, shape), not {given!r}")
    return [describe(d) for d in given or ()]


def names_among(what: str, names: Sequence[str] | None, arguments: Sequence[str]) -> list[str]:
    """A list of names; GraphError for one that is no argument."""
    if isinstance(names, str):
        raise TypeError(f"{what} is a list of names, not the name {names!r}")
    for name in names or ():
        if name not in arguments:
            raise GraphError(f"{what}: no argument {name!r}; {nearest(name, arguments)}")
    return list(names or ())


def labels_among(names: Sequence[str] | None, arguments: Sequence[str], logger: Any) -> list[str]:
    """Those labels that are arguments: a network that is not trained may have none.

    Others are told, as in MXNet, but not MXNet's default name.
    """
    if isinstance(names, str):
        raise TypeError(f"label_names is a list of names, not the name {names!r}")
    for name in names or ():
        if name not in arguments and name != "softmax_label":
            logger.warning("label_names: no argument %r; %s", name, nearest(name, arguments))
    return [name for name in names or () if name in arguments]


def chosen(
    kvstore: str | None,
    optimizer: str | Optimizer,
    settings: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
    data: DataDesc,
) -> Optimizer:
    """The optimizer; one by name divides gradients by the batch's size unless the settings do.

    Raises ConfigError for names, stores and settings that there are not, TypeError for what is no
    optimizer.
    """
    if kvstore not in STORES:
        raise ConfigError(f"kvstore={kvstore!r}: there is none but {STORES}")
    if isinstance(optimizer, str):
        given = {"rescale_grad": 1.0 / data.shape[data.feed.axis], **dict(settings or ())}
        return optimizers.create(optimizer, **given)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be one of symgraph.optimizer, not {optimizer!r}")
    return optimizer


def require_kind(what: str, given: object, kind: type) -> None:
    """TypeError for what is of another kind."""
    if not isinstance(given, kind):
        raise TypeError(f"{what} is a {kind.__name__}, not a {type(given).__name__}")


def first_values(
    initializer: str | Initializer | Mixed | None, given: Mapping[str, Any] | None
) -> Initializer | Mixed | None:
    """The initializer by its name or itself; ConfigError if there are no given values either."""
    if initializer is None and given is None:
        raise ConfigError("init_params: there is neither an initializer nor arg_params")
    return None if initializer is None else create(initializer)


def require_names(
    what: str, descs: Sequence[DataDesc], names: Sequence[str], *, others: bool = False
) -> None:
    """GraphError unless these are described, and no others unless these may be there as well."""
    found = [d.name for d in descs if not others or d.name in names]
    if sorted(found) != sorted(names):
        found = [d.name for d in descs]
        raise GraphError(f"{what} describes {found}, but the module's names are {list(names)}")


def grad_requests(
    grad_req: str | Mapping[str, str], names: Sequence[str], trained: Sequence[str]
) -> dict[str, str]:
    """What to do with the gradient of each parameter that is trained; GraphError for mistakes."""
    given = dict.fromkeys(names, grad_req) if isinstance(grad_req, str) else grad_req
    for name, request in given.items():
        if name not in names:
            raise GraphError(f"grad_req: no parameter {name!r}; {nearest(name, names)}")
        if request not in REQUESTS:
            raise GraphError(f"grad_req of {name!r}: {request!r}; {nearest(request, REQUESTS)}")
    return {name: given.get(name, "null") for name in trained}


def guessed(name: str, shape: Shape, data: Sequence[DataDesc]) -> Feed:
    """The type of a label that nobody gives: samples along the axis along which data has them."""
    feed = data[0].feed
    size = feed.type.shape[feed.axis]
    if shape[feed.axis : feed.axis + 1] != (size,):
        raise ShapeError(
            f"label {name!r} of shape {shape} has not the batch of {size} along axis {feed.axis}: "
            "describe it in label_shapes"
        )
    return DataDesc(name, shape, "float32", "T" * feed.axis + "N").feed


def matched(
    what: str, bound: Sequence[DataDesc], arrays: Sequence[Any], provided: Sequence[Any]
) -> list[tuple[DataDesc, Any]]:
    """Each array of a batch with what it is: by the batch's own word, else in the bound order.

    They may be lists, or on GPUs; what is found is on the host.
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
