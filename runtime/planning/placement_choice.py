"""The choice of a placement: the best of all candidates, by the step that each would make.

The bottleneck alone does not say how long a step takes, so each candidate's schedule is chosen and
simulated, and the shortest step is taken, unless the objective says otherwise. What `auto` returns
is predicted no slower than any strategy's placement, any device alone, and all strategies on the
first few of the devices; the other devices then stay idle.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from partitioner import Placement
from partitioner.strategies import Constraints, Placed
from partitioner.strategies.types import LATENCY, STEP, THROUGHPUT
from runtime.planning.costs.prices import CostModel
from runtime.planning.draft import Draft
from runtime.planning.network import Network
from runtime.planning.options import AUTO, Options
from runtime.planning.placement_candidates import Candidates
from runtime.planning.placement_estimates import Estimates, estimated
from runtime.planning.plan import Plan, PlanCandidate
from runtime.planning.schedule_choice import BOTH, Kinds, select_timed
from symgraph.core.context import Context
from symgraph.core.errors import LimitError, PlacementError, ScheduleError

LOG = logging.getLogger(__name__)
MOST_PROVED = 8  # placements that are tried because of their bounds
PROMISING, BEST_NAMED = 8, 4  # placements to try: the first, and the best by named schedules
RANKED, FITTING = 40, 12  # placements that are enough to find these: in all, and within a limit
CLOSE = 1.001  # times its bound: a step that is close enough to it
Drafting = Callable[[Placement], Draft]


def select_placement(draft: Drafting, network: Network, options: Options, costs: CostModel) -> Plan:
    """Return the plan with a strategy's placement, or with `auto` the best by the objective.

    Candidates with the same placement share its schedule.

    Args:
        draft: makes a draft with a placement.
        network: the network to place.
        options: those of all drafts.
        costs: what everything costs.

    Raises:
        PlacementError, ScheduleError: nothing keeps to the limits.
    """
    assert options.strategy is not None
    machine, constraints = options.machine_of(costs), _constraints(options, network)
    candidates = Candidates(network.first, costs, machine, constraints)
    hurry = options.objective == STEP
    tries = _Tries(draft, costs, hurry=hurry, frugal=hurry and candidates.frugal)
    if options.rules and options.strategy == AUTO:
        candidates.coarse(contiguous=False)  # fails where rules contradict each other
    if options.strategy == AUTO and tries.hurry and candidates.large(options):
        tries.add_best(estimated(candidates, network, options, costs))
    else:
        _try_strategies(tries, candidates, options.strategy)
        if options.strategy == AUTO:
            _try_more(tries, candidates, network)
    tries.complete()
    if not tries.plans:
        raise tries.failed or candidates.failed or PlacementError("no strategy found a placement")
    _, best = min(tries.plans, key=lambda p: _score(p[0], p[1], options.objective, draft, costs))
    bound = tries.bound if options.strategy == AUTO else None
    return replace(best, placements=tuple(tries.candidates), prices=costs, bound=bound)


def _try_strategies(tries: _Tries, candidates: Candidates, strategy: str) -> None:
    """Try what one strategy, or all of them, find on all devices."""
    for level in candidates.levels:
        estimated = strategy == AUTO and candidates.estimated and tries.hurry
        tries.add_all(candidates.of_strategy(strategy, level), estimated=estimated)
        if tries.plans and (strategy != AUTO or candidates.roomy(level)):
            break


def _try_more(tries: _Tries, candidates: Candidates, network: Network) -> None:
    """Try devices alone, the first few devices, and what a search finds from all these."""
    tries.add_all(candidates.alone())
    if not tries.placements and candidates.limited:
        tries.add_all(candidates.smallest())
    options = tries.draft(tries.placements[0]).options if tries.placements else None
    if options is None:
        return
    hopeless = _is_hopeless(network, options)  # then the error only has to name the smallest limit
    if tries.hurry:
        for count in () if options.named_only else candidates.counts:
            if candidates.least(count) * len(network.sizes) < tries.shortest:
                tries.add_all(candidates.on_first(count), estimated=candidates.estimated)
        if not hopeless:
            found = candidates.searched(network, options, tries.placements, tries.peaks)
            ranked = candidates.limited and not tries.frugal
            tries.add_all(tries.promising(found) if ranked else found)
    if not tries.plans and candidates.limited:
        tries.add_all(candidates.smallest())
        known = tries.placements, tries.peaks
        found = candidates.searched(network, options, *known, for_memory=True)
        tries.add_all(islice(found, PROMISING if hopeless else None))
    if tries.hurry and tries.plans:
        lowest = candidates.lowest(network, options, tries.shortest)
        if lowest is not None:
            tries.prove(*lowest, most=0 if candidates.limited else MOST_PROVED)


def _is_hopeless(network: Network, options: Options) -> bool:
    """Tell whether weights and optimizer arrays alone are more than all devices may hold."""
    least = sum(
        node.types[0].nbytes * (1 + options.slots * (node.name in network.grads))
        for node in network.first.variables
        if node.name in network.parameters
    )
    limits = [limit for limit in options.limits(options.ranks) if limit is not None]
    return len(limits) == len(options.ranks) and least > sum(limits)


def _constraints(options: Options, network: Network) -> Constraints:
    """Return the constraints of a strategy."""
    devices, groups = options.ranks, options.groups or {}
    pins = {
        group: devices.index(device)
        for group, device in groups.items()
        if isinstance(device, Context)
    }
    spread = {
        group: tuple(map(devices.index, pieces))
        for group, pieces in groups.items()
        if not isinstance(pieces, Context)
    }
    return Constraints(
        memory=options.memory,
        parameters=network.parameters,
        grads=network.grads,
        slots=options.slots,
        in_flight=min(len(network.sizes), len(devices)),
        keep_groups=options.keep_groups,
        together=[(variable, value.node) for variable, value in network.states.items()],
        pins=pins,
        rules=options.rules,
        spread=spread,
        split_tied=options.split_tied,
        steps=options.solver_steps,
    )


class _Tries:
    """The schedules of placements that have been tried.

    No step of a placement is shorter than what its busiest rank has to run, so a placement on which
    that takes longer than the shortest step need not be scheduled.
    """

    def __init__(self, draft: Drafting, costs: CostModel, *, hurry: bool, frugal: bool) -> None:
        """Start without tries.

        Args:
            draft: makes a draft with a placement.
            costs: what everything costs.
            hurry: whether to skip placements that cannot make the shortest step.
            frugal: whether to try named schedules alone, and all of them only for the best in the
                end: with a memory limit, each try of a large graph takes seconds.
        """
        self.draft, self.costs, self.hurry, self.frugal = draft, costs, hurry, frugal
        self.candidates: list[PlanCandidate] = []
        self.plans: list[tuple[Placed, Plan]] = []  # those within the limits that may be the best
        self._proofs: list[tuple[Placement, float]] = []  # lower bounds on the steps of placements
        self.shortest = math.inf  # seconds of the shortest step
        self.bound: float | None = None  # seconds that no placement's step can beat
        self.failed: ScheduleError | None = None  # with the smallest limit of those that failed
        self.peaks: list[tuple[Placement, int]] = []  # the least bytes that a placement needs

    @property
    def placements(self) -> list[Placement]:
        """The placements of all candidates."""
        return [placed.placement for placed in self._placed]

    @property
    def _placed(self) -> list[Placed]:
        return [c.placed for c in self.candidates if c.placed is not None]

    def add_all(self, placements: Iterable[Placed], *, estimated: bool = False) -> None:
        """Try placements, the one with the least load first; list them in the order given.

        What a strategy has found before, with other estimates of memory, is left out.

        Args:
            estimated: leave all but the first of all to a search that starts from them.
        """
        listed = [(p.strategy, p.placement) for p in self._placed]
        given = [p for p in placements if (p.strategy, p.placement) not in listed]
        tried: dict[int, PlanCandidate] = {}
        for number in sorted(range(len(given)), key=lambda i: given[i].load):
            LOG.debug("scheduling placements", extra={"done": len(tried), "of": len(given)})
            if estimated and self.plans:
                tried[number] = PlanCandidate(placed=given[number])
            else:
                tried[number] = self._tried(given[number], [*self.candidates, *tried.values()])
        self.candidates += [tried[number] for number in range(len(given))]

    def add_best(self, estimates: Estimates) -> None:
        """Try the placements with the best estimates, and list those of all others."""
        tried = {e: self._scheduled(e.placed(), kinds) for e, kinds in estimates.best()}
        for estimate, _ in estimates.rows:
            found = tried.get(estimate, PlanCandidate())
            self.candidates.append(replace(found, estimate=estimate))

    def prove(self, lowest: Sequence[tuple[float, Placed]], others: float, *, most: int) -> None:
        """Try the placements of the lowest bounds, and bound the steps of all.

        Args:
            lowest: placements and what their steps take at least, the lowest first.
            others: what all others take at least.
            most: the number of placements to try; with a memory limit, few of them fit.
        """
        bounds, tried = [others], 0
        for least, placed in lowest:
            if tried == most or least * CLOSE >= self.shortest:
                bounds.append(least)
                break
            count = len(self.candidates)
            self.add_all([placed])
            tried += self.candidates[count].bound is None
            bounds.append(max(least, self._proved(placed.placement)))
        self.bound = min(self.shortest, *bounds)

    def _proved(self, placement: Placement) -> float:
        """Return the best known lower bound on the steps of a placement that was tried; 0: none."""
        return next((bound for other, bound in self._proofs if other == placement), 0.0)

    def promising(self, placements: Iterable[Placed]) -> list[Placed]:
        """Choose those of the first that are given, and of those with the best named schedules.

        With a memory limit that is a better guide than estimates, and the list scheduler, which
        would find more, takes its time where little fits.
        """
        given: list[Placed] = []
        fitting: list[tuple[float, Placed]] = []
        for placed in placements:
            given.append(placed)
            with suppress(ScheduleError):
                seconds = select_timed(self._named(placed), self.costs).choice.seconds
                fitting.append((seconds or 0.0, placed))
            if len(given) >= RANKED and len(fitting) >= FITTING:
                break
        best = [placed for _, placed in sorted(fitting, key=lambda f: f[0])[:BEST_NAMED]]
        return [p for p in given if p in given[:PROMISING] or p in best]

    def complete(self) -> None:
        """Try all schedules of the placements that are the best by named ones."""
        if not self.frugal:
            return
        self.frugal = False
        ranked = sorted(self.plans, key=lambda p: p[1].choice.seconds or 0.0)
        best = [placed for placed, _ in ranked[:BEST_NAMED]]
        if not best:
            least = sorted(self.peaks, key=lambda p: p[1])[:BEST_NAMED]
            best = [p for p in self._placed if any(p.placement is other for other, _ in least)]
        self.plans = [p for p in self.plans if p[0] not in best]
        for number, placed in enumerate(best):
            LOG.debug(
                "trying all schedules of the best placements",
                extra={"done": number, "of": len(best)},
            )
            done = self._scheduled(placed)
            for at, other in enumerate(self.candidates):
                if other.placed is not None and other.placed.placement == placed.placement:
                    self.candidates[at] = replace(done, placed=other.placed)

    def _named(self, placed: Placed) -> Draft:
        """Return a placement's draft with named schedules alone."""
        draft = self.draft(placed.placement)
        return replace(draft, options=replace(draft.options, named_only=True))

    def _tried(self, placed: Placed, known: Iterable[PlanCandidate]) -> PlanCandidate:
        """Select a placement's schedule, unless another has the same or it cannot be the best."""
        for other in known:
            same = other.placed is not None and other.placed.placement == placed.placement
            if same and (other.seconds is not None or other.bound is not None):
                return replace(other, placed=placed)
        draft = self.draft(placed.placement)
        if self.hurry and self.plans:
            least = draft.busiest(False, None, lambda cut: self.costs.costs(cut))
            if least >= self.shortest:
                return PlanCandidate(placed=placed, bound=least)
        return self._scheduled(placed)

    def _scheduled(self, placed: Placed, kinds: Kinds = BOTH) -> PlanCandidate:
        """Select a placement's schedule, of these kinds."""
        draft = self._named(placed) if self.frugal else self.draft(placed.placement)
        if len(kinds) == 1:  # a large graph: one length of time segments is enough
            draft = replace(draft, options=replace(draft.options, near=1))
        try:
            beat = self.shortest if self.hurry else math.inf
            plan = select_timed(draft, self.costs, kinds, beat=beat)
        except ScheduleError as error:
            self.failed = _smaller(error, self.failed)
            if isinstance(error, LimitError):
                self.peaks.append((placed.placement, error.smallest))
            return PlanCandidate(placed=placed)
        seconds = plan.choice.seconds
        assert seconds is not None
        chosen = plan.options
        if chosen.schedule == AUTO and not chosen.named_only and not chosen.recompute:
            bounds = [c.bound for c in plan.candidates if c.bound is not None]
            self._proofs.append((placed.placement, min([seconds, *bounds])))
        hurry = self.hurry and not draft.limited  # then no other can be chosen any more
        if not hurry or seconds < self.shortest:
            plan = plan.counted()  # plans are large, and those of its candidates too
            self.plans = [(placed, plan)] if hurry else [*self.plans, (placed, plan)]
        if draft.limited:
            self.peaks.append((placed.placement, min(c.peak for c in plan.candidates)))
        self.shortest = min(self.shortest, seconds)
        return PlanCandidate(placed=placed, seconds=seconds)


def _smaller(error: ScheduleError, other: ScheduleError | None) -> ScheduleError:
    """Return the error that names the smaller memory limit."""
    if isinstance(error, LimitError) and isinstance(other, LimitError):
        return min(other, error, key=lambda e: e.smallest)
    return other or error


def _score(placed: Placed, plan: Plan, objective: str, draft: Drafting, costs: CostModel) -> float:
    """Return the quantity to minimise for this objective."""
    if objective == THROUGHPUT:
        return placed.load
    if objective == LATENCY:
        alone = replace(plan.network, sizes=plan.sizes[:1])
        plan = select_timed(replace(draft(placed.placement), network=alone), costs)
    assert plan.choice.seconds is not None
    return plan.choice.seconds
