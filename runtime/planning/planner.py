"""The planner: a symbol taken through the whole flow to checked programs for all ranks.

Symbol ─make_network→ Network ─placement→ Draft ─select_schedule→ Plan
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from partitioner import Placement, group2ctx
from partitioner.placement.group2ctx import assign
from partitioner.placement.transfer import carry
from partitioner.strategies.rules import APART, SAME, SAMPLES, TOGETHER, Rule, require_kept
from partitioner.strategies.types import STEP
from runtime.backends.device.arrays import require
from runtime.planning.draft import Draft
from runtime.planning.grid import Grid, columns, grids_to_try, groups_in, in_first_row
from runtime.planning.grid_estimate import grid_seconds
from runtime.planning.network import PlanRequest, make_network
from runtime.planning.options import AUTO, Options, PlacementOptions, require_options
from runtime.planning.placement_candidates import MANY_NODES
from runtime.planning.placement_choice import select_placement
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.schedule_choice import limit_advice, select_schedule, select_timed
from runtime.planning.splits import GAIN, GroupSplit, shard_marks, splits_to_try, weigh
from symgraph.core.context import Context
from symgraph.core.errors import (
    ConfigError,
    DTypeError,
    GraphError,
    LimitError,
    MicroBatchError,
    PlacementError,
    ScheduleError,
)
from symgraph.core.graph import Graph
from symgraph.core.heap import no_collections, trim_heap
from symgraph.core.units import bytes_text, count_text
from symgraph.frontend.infer import undifferentiable
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed, batch_size

LOG = logging.getLogger(__name__)
ROW_STRATEGY = "chain"  # places a row of which no placement was tried
MOST_BLAMED = 8  # constraints to leave out one after another
MOST_LIMITS = 8  # memory limits to try, each named by the refusal of the one before
GRID_NODES = 120_000  # of the rows of all grids that are estimated
ROW_GAIN = 1.05  # times the best step: what a row may take by another grid's schedule


def plan_model(model: Model, options: Options, dtype: str, *, train: bool) -> Plan:
    """Plan a model; dtype: of the arguments that are not fed, train: whether with gradients."""
    names = [name for name in model.symbol.list_arguments() if name not in model.feeds]
    try:
        return plan(
            model.symbol,
            model.feeds,
            replace(options, states=model.states),
            wrt=names if train else (),
            dtypes=dict.fromkeys(names, dtype),
        )
    except DTypeError as error:
        for name, feed in model.feeds.items():
            if feed.type.dtype in ("float32", "float64") and feed.type.dtype != dtype:
                one = f"the input {name!r} ({feed.type.dtype}) and train.dtype ({dtype}) one type"
                raise DTypeError(f"{error}, or give {one}") from None
        raise


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
    with no_collections():
        try:
            best = _with_best_micro_batches(request, options)
        except LimitError as error:
            told = _with_limit_that_works(error, request, options)
            raise _with_blame(told, request, options) from None
    LOG.debug("")  # nothing is being done any more
    if best.prices is not None:
        trim_heap()
    return replace(best.counted(), request=request)


def _with_limit_that_works(error: LimitError, request: PlanRequest, options: Options) -> LimitError:
    """Return the error with a limit that really works.

    A strategy has only an estimate of what devices hold, and may place the network in another way
    where the limit is higher. So the limits that refusals name are tried in turn. `auto` has tried
    what schedules need.
    """
    placed = options.placement is not None or options.like is not None
    if options.strategy in (None, AUTO) or placed:
        return error

    def attempt(limit: int) -> None:
        _with_best_micro_batches(request, options.with_limit(limit))

    limit, works = raised_limit(error.smallest, attempt)
    if works and limit == error.smallest:
        return error
    of_step = options if request.wrt else options.forward_only()
    least = "" if works else "at least "
    known = "that limit works" if works else "it is not known which limit works"
    return LimitError(
        f"strategy {options.strategy} with schedule {of_step.schedule} needs {least}"
        f"{bytes_text(limit)} ({limit} bytes) on a device, which is more than its limit; {known}"
        f"{', and no smaller one that was tried' if works else ''}; strategy: auto may do with "
        f"less{limit_advice(of_step)}",
        limit,
    )


def raised_limit(limit: int, attempt: Callable[[int], object]) -> tuple[int, bool]:
    """Return the first memory limit with which a plan fits, or that none of MOST_LIMITS did.

    Args:
        limit: the first to try; each refusal names the next, unless it names no larger one.
        attempt: plans with a limit.
    """
    for _ in range(MOST_LIMITS):
        LOG.debug("trying a memory limit of %s", bytes_text(limit))
        try:
            attempt(limit)
        except LimitError as other:
            if other.smallest <= limit:
                break
            limit = other.smallest
        except (PlacementError, ScheduleError):
            break
        else:
            return limit, True
    return limit, False


def _with_blame(error: LimitError, request: PlanRequest, options: Options) -> LimitError:
    """Name the constraints without which a plan keeps the memory limit, if there are such.

    Each is left out by itself, then all at once; only named schedules are tried.
    """
    rules = options.rules
    if options.strategy is None or options.rows > 1 or not 0 < len(rules) <= MOST_BLAMED:
        return error

    def fits(some: Sequence[Rule]) -> bool:
        try:
            some_only = replace(options, rules=tuple(some), splits=False, named_only=True)
            _with_best_micro_batches(request, some_only)
        except (PlacementError, ScheduleError):
            return False
        return True

    blamed = [rule for rule in rules if fits([r for r in rules if r is not rule])]
    if not blamed and (len(rules) == 1 or not fits(())):
        return error
    listed = " or ".join(map(str, blamed)) or "all constraints"
    return LimitError(f"{error}; without {listed} the given limit can be kept", error.smallest)


def _with_best_micro_batches(request: PlanRequest, options: Options) -> Plan:
    """Return the plan with the best number of micro-batches, where it is open.

    Powers of two are tried until more have made the step longer twice. A network that mixes the
    samples of a batch has one. So has one device, unless its memory is limited.
    """
    if options.micro_batches != AUTO:
        return _with_best_splits(request, options)
    batch = batch_size(request.feeds) if request.feeds else 1
    counts: dict[int, float] = {}
    best: Plan | None = None
    limits: list[LimitError] = []
    for count in (1 << power for power in range((batch // options.rows).bit_length())):
        LOG.debug("trying %s", count_text(count, "micro-batch"))
        try:
            made = _with_best_splits(request, replace(options, micro_batches=count), timed=True)
        except MicroBatchError:
            if count == 1:
                raise
            break
        except LimitError as error:
            limits.append(error)
            continue
        counts[count] = _seconds(made)
        if best is None or counts[count] < _seconds(best):
            best = made
        if len(options.devices) < 2 or _seconds(best) not in [*counts.values()][-2:]:
            break
    if best is None:
        raise min(limits, key=lambda error: error.smallest)
    return replace(best, counts=counts)


def _with_best_splits(request: PlanRequest, options: Options, *, timed: bool = False) -> Plan:
    """Return the plan with the best splits of groups, or the best grid, where they are open.

    Args:
        timed: see `_planned`.
    """
    whole_grid = options.data_axis is None and options.model_axis is None
    if options.rows > 1 or options.model_axis is not None:
        request, options = _on_grid(request, options)
    best = whole = _planned(request, options, timed=timed)
    is_open = options.strategy == AUTO and options.placement is None
    if not (options.splits and is_open and request.feeds and len(options.devices) > 1):
        return best
    compared = [PlanCandidate(seconds=best.choice.seconds)]
    for splits in _splits(whole, options):
        LOG.debug("trying %s", " and ".join(f"{s.group} in {s.kind}" for s in splits))
        with suppress(PlacementError, ScheduleError, MicroBatchError):
            other = _planned(request, _with_splits(options, splits))
            compared.append(PlanCandidate(seconds=other.choice.seconds, splits=splits))
            if _seconds(other) < GAIN * _seconds(best):
                best = other
    if whole_grid:
        best, grids = _with_best_grid(request, whole, options, best)
        compared += grids
    return replace(best, splits=tuple(compared))


def _with_best_grid(
    request: PlanRequest, whole: Plan, options: Options, best: Plan
) -> tuple[Plan, list[PlanCandidate]]:
    """Return the best plan, on a grid or not, and what was compared.

    Grids of a graph of many nodes are estimated; those that are promising are planned.

    Args:
        request: the network.
        whole: its plan without splits.
        options: its options.
        best: the best plan so far.
    """
    grids, nodes = _grids(request, whole, options), len(whole.network.first)
    compared: dict[Grid, PlanCandidate] = {}
    least: dict[Grid, float] = {}
    for number, grid in enumerate(grids, 1):
        if number * nodes > GRID_NODES:
            failed = f"not tried, as the graph has {count_text(nodes, 'node')}"
            compared[grid] = PlanCandidate(grid=grid, failed=failed)
        else:
            LOG.debug("trying grids of devices", extra={"done": number - 1, "of": len(grids)})
            least[grid] = _row_seconds(request, whole, options, grid)
    for grid in sorted(least, key=least.__getitem__):
        if least[grid] >= ROW_GAIN * _seconds(best):
            compared[grid] = PlanCandidate(grid=grid, bound=least[grid])
            continue
        try:
            other = _planned(*_auto_grid(request, whole, options, grid), timed=True)
        except (PlacementError, ScheduleError, MicroBatchError, GraphError) as error:
            compared[grid] = PlanCandidate(grid=grid, failed=str(error))
            continue
        compared[grid] = PlanCandidate(grid=grid, seconds=other.choice.seconds)
        if _seconds(other) < GAIN * _seconds(best):
            best = replace(other, placements=whole.placements)
    return best, [compared[grid] for grid in grids]


def _seconds(best: Plan) -> float:
    assert best.choice.seconds is not None
    return best.choice.seconds


def _on_grid(request: PlanRequest, options: Options) -> tuple[PlanRequest, Options]:
    """Return the request that puts every operator on a whole column of the grid."""
    rows = options.grid
    row = replace(options, devices=rows[0], splits=False, data_axis=1, model_axis=None)
    if len(rows) == 1:
        return request, replace(row, splits=options.splits)
    if options.machine is not None:
        row = replace(row, machine=options.machine.only(rows[0]))
    if not request.feeds:
        raise ConfigError("data_axis deals out samples, but the network is fed none")
    graph = request.lowered(batch_size(request.feeds))
    names = groups_in(graph)
    groups = in_first_row(options.groups or {}, rows)
    if options.placement is not None or options.like is not None:
        # Where a group is on several columns, the options name parts of it.
        groups = {name: groups.get(name, rows[0][0]) for name in names}
    if options.strategy is None:
        device_of = assign(graph, groups or None, options.default)
        require_kept(graph, options.rules, device_of)
    else:
        one_row = replace(row, groups=groups, keep_groups=bool(names))
        placement = _with_best_splits(request, one_row).placement
        device_of = {n: placement.device_of(n) for n in graph.nodes if n in placement.stage_of}
    return _on_columns(request, options, graph, device_of)


def _on_columns(
    request: PlanRequest, options: Options, graph: Graph, device_of: Mapping[str, Context]
) -> tuple[PlanRequest, Options]:
    """Return the request that puts every operator on the column of its device in the first row."""
    replicated = columns(graph, device_of, options.grid)
    on_columns = replace(
        options,
        strategy=None,
        rules=(),
        splits=False,
        model_axis=None,
        groups=replicated.devices,
    )
    return replace(request, groups=replicated.of), on_columns


def _grids(request: PlanRequest, whole: Plan, options: Options) -> list[Grid]:
    """Return the grids to try: none where the user says something that a grid would not keep."""
    kept = all(r.kind in (TOGETHER, APART, SAME) or r.axis == SAMPLES for r in options.rules)
    given = options.groups or options.shards or options.replicas
    if given or not kept or not request.wrt or options.objective != STEP:
        return []
    assert whole.prices is not None
    machine = options.machine_of(whole.prices)
    links = [machine.link(0, other) for other in range(1, len(machine.devices))]
    uneven = any(link != links[0] for link in links)
    return grids_to_try(len(options.ranks), min(whole.sizes), uneven=uneven)


def _auto_grid(
    request: PlanRequest, whole: Plan, options: Options, grid: Grid
) -> tuple[PlanRequest, Options]:
    """Return the request for a grid, placed on a row as was best on so many of the devices."""
    options = replace(options, data_axis=grid.rows, replicas_near=grid.near)
    row = options.grid[0]
    best = _row_placement(whole, len(row))
    if best is None:  # so few devices were not worth trying
        return _on_grid(request, replace(options, strategy=ROW_STRATEGY))
    graph = request.lowered(batch_size(request.feeds))
    rank_of = {n: best.rank_of[best.stage_of[n]] for n in graph.nodes if n in best.stage_of}
    return _on_columns(request, options, graph, {n: row[rank] for n, rank in rank_of.items()})


def _row_placement(whole: Plan, devices: int) -> Placement | None:
    """Return the best placement on the first devices, by its step or by its load."""
    known = [
        (c.seconds or c.bound or c.placed.load * len(whole.sizes), c.placed)
        for c in whole.placements
        if c.placed is not None and max(c.placed.placement.rank_of) < devices
    ]
    estimates = [c.estimate for c in whole.placements if c.estimate is not None]
    some = [e for e in estimates if max(e.devices) < devices]
    if some:
        return min(some, key=lambda e: e.seconds).placed().placement
    return min(known, key=lambda c: c[0])[1].placement if known else None


def _row_seconds(request: PlanRequest, whole: Plan, options: Options, grid: Grid) -> float:
    """Estimate the step of a grid of many nodes; 0: it is not known."""
    best = _row_placement(whole, len(options.ranks) // grid.rows)
    if len(whole.network.first) < MANY_NODES or best is None or options.memory is not None:
        return 0.0
    on_grid = replace(options, data_axis=grid.rows, replicas_near=grid.near)
    try:
        return grid_seconds(request, whole, best, on_grid)
    except (PlacementError, ScheduleError, MicroBatchError, GraphError):
        return 0.0


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


def _planned(request: PlanRequest, options: Options, *, timed: bool = False) -> Plan:
    """Return the plan with the groups split as the options say.

    Args:
        timed: whether its step is predicted even if nothing is left to choose.
    """
    LOG.debug("differentiating the network")
    network = make_network(request, options, options.group_sizes)
    of_step = options if request.wrt else options.forward_only()
    draft = partial(Draft, network, options=of_step)
    placement = _given_placement(network.first, options)
    if placement is None:
        best = select_placement(draft, network, of_step, options.costs(network.first))
    elif timed:
        costs = options.costs(network.first)
        best = replace(select_timed(draft(placement), costs), prices=costs)
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
