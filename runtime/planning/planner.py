"""The planner: a symbol taken through the whole flow to checked programs for all ranks.

Symbol ─make_network→ Network ─placement→ Draft ─select_schedule→ Plan
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from partitioner import Placement, group2ctx
from partitioner.placement.group2ctx import assign
from partitioner.placement.transfer import carry
from partitioner.strategies.rules import require_kept
from runtime.backends.device.arrays import require
from runtime.planning.draft import Draft
from runtime.planning.grid import columns, grid_rows, groups_in, in_first_row
from runtime.planning.heap import trim_heap
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import AUTO, Options, PlacementOptions, require_options
from runtime.planning.placement_choice import select_placement
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.schedule_choice import select_schedule
from runtime.planning.splits import GAIN, GroupSplit, shard_marks, splits_to_try, weigh
from symgraph.core.errors import ConfigError, MicroBatchError, PlacementError, ScheduleError
from symgraph.core.graph import Graph
from symgraph.frontend.infer import undifferentiable
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed, batch_size

LOG = logging.getLogger(__name__)


def plan_model(model: Model, options: Options, dtype: str, *, train: bool) -> Plan:
    """Plan a model; dtype: of the arguments that are not fed, train: whether with gradients."""
    names = [name for name in model.symbol.list_arguments() if name not in model.feeds]
    return plan(
        model.symbol,
        model.feeds,
        replace(options, states=model.states),
        wrt=names if train else (),
        dtypes=dict.fromkeys(names, dtype),
    )


def plan(
    symbol: Symbol,
    feeds: Mapping[str, Feed],
    options: Options,
    *,
    wrt: Sequence[str] | None = (),
    heads: bool = False,
    shapes: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
) -> Plan:
    """Lower, differentiate, place, cut, schedule and check; nothing runs.

    Args:
        feeds: the variables that get new values every step.
        wrt: the variables to differentiate by; None: all arguments that are not fed; (): the plan
            runs forward only.
        heads: whether outputs have head gradients that are fed.
        shapes: shapes of other variables, where they cannot be inferred.
        dtypes: their dtypes.

    Raises what the steps raise.
    """
    require_options(feeds, options)
    if options.machine is None:
        for context in options.contexts:
            require(context)
    if wrt is None:
        others = undifferentiable(symbol)
        wrt = [n for n in symbol.list_arguments() if n not in feeds and n not in others]
    request = PlanRequest(symbol, feeds, tuple(wrt), heads, shapes or {}, dtypes or {})
    best = _with_best_splits(request, options)
    if best.prices is not None:
        trim_heap()
    return replace(best, request=request)


def _with_best_splits(request: PlanRequest, options: Options) -> Plan:
    """Return the plan with the best splits of groups, where they are open."""
    if options.data_axis > 1 or options.model_axis is not None:
        request, options = _on_grid(request, options)
    best = _planned(request, options)
    is_open = options.strategy == AUTO and options.placement is None
    if not (options.splits and is_open and request.feeds and len(options.devices) > 1):
        return best
    compared = [PlanCandidate(seconds=best.choice.seconds)]
    for splits in _splits(best, options):
        LOG.info("%s", " and ".join(f"{s.group} in {s.kind}" for s in splits))
        with suppress(PlacementError, ScheduleError, MicroBatchError):
            other = _planned(request, _with_splits(options, splits))
            compared.append(PlanCandidate(seconds=other.choice.seconds, splits=splits))
            if _seconds(other) < GAIN * _seconds(best):
                best = other
    return replace(best, splits=tuple(compared))


def _seconds(best: Plan) -> float:
    assert best.choice.seconds is not None
    return best.choice.seconds


def _on_grid(request: PlanRequest, options: Options) -> tuple[PlanRequest, Options]:
    """Return the request that puts every operator on a whole column of the grid."""
    rows = grid_rows(options.ranks, options.data_axis, options.model_axis)
    row = replace(options, devices=rows[0], splits=False, data_axis=1, model_axis=None)
    if len(rows) == 1:
        return request, replace(row, splits=options.splits)
    if options.machine is not None:
        row = replace(row, machine=options.machine.only(rows[0]))
    if not request.feeds:
        raise ConfigError("data_axis deals out samples, but the network is fed none")
    graph = request.lowered(batch_size(request.feeds))
    names = groups_in(graph)
    groups = in_first_row(options.groups or {}, rows, names)
    if options.strategy is None:
        device_of = assign(graph, groups or None, options.default)
        require_kept(graph, options.rules, device_of)
    else:
        one_row = replace(row, groups=groups, keep_groups=bool(names))
        placement = _with_best_splits(request, one_row).placement
        device_of = {n: placement.device_of(n) for n in graph.nodes if n in placement.stage_of}
    replicated = columns(graph, device_of, rows)
    on_columns = replace(
        row,
        devices=options.devices,
        machine=options.machine,
        strategy=None,
        rules=(),
        data_axis=options.data_axis,
        groups=replicated.devices,
    )
    return replace(request, groups=replicated.of), on_columns


def _splits(whole: Plan, options: Options) -> list[tuple[GroupSplit, ...]]:
    """Return the splits to try, by the weights of the groups of the plan without splits."""
    assert whole.prices is not None
    graph, contexts = whole.network.first, options.machine_of(whole.prices).contexts
    weights = weigh(graph, whole.prices.merged(graph, contexts))
    fixed = tuple(options.groups or {})
    return splits_to_try(weights, fixed, len(options.devices), options.rules)


def _with_splits(options: Options, splits: Sequence[GroupSplit]) -> Options:
    """Return the options with some groups on all devices."""
    groups = {**(options.groups or {}), **{s.group: options.devices for s in splits}}
    return replace(options, groups=groups, shards={**options.shards, **shard_marks(splits)})


def _planned(request: PlanRequest, options: Options) -> Plan:
    """Return the plan with the groups split as the options say."""
    LOG.info("graphs of the network with its gradients")
    network = make_network(request, options, options.group_sizes)
    draft = partial(Draft, network, options=options if request.wrt else options.forward_only())
    placement = _given_placement(network.first, options)
    if placement is None:
        best = select_placement(draft, network, options, options.costs(network.first))
    else:
        best = select_schedule(draft(placement), cache(lambda: options.costs(network.first)))
    network.require_states_in_place(best.placement)
    if options.rules:
        device_of = {node: best.placement.device_of(node) for node in best.placement.stage_of}
        require_kept(network.first, options.rules, device_of)
    return replace(best, options=options)


def _given_placement(graph: Graph, options: PlacementOptions) -> Placement | None:
    """Return the placement that groups or another plan give; None: a strategy's is wanted."""
    if options.like is not None:
        return carry(graph, *options.like)
    if options.strategy is None and options.placement is None:
        return group2ctx(graph, options.groups, options.default, options.devices)
    return options.placement
