"""The planner beside full enumeration: random graphs on random machines.

    python -m benchmarks.planner_optimum --cases 300 --results planner.jsonl

Each random network has up to 16 operators; its machine has 2 to 4 devices, of one speed or of two
(1:3), whose links have latency and bandwidth. Every placement of the operators (one for all that
differ only in the order of equal devices) is cut, lowered with every named schedule and simulated,
unless a lower bound of its step is above the best step so far. With a memory limit, every set of
stages that recompute counts too. Beside that stands what `strategy: auto, schedule: auto` returns.

Results go to the file case by case, and seeds that it holds are not run again. So the same command
continues a run that was stopped, and a command with more cases adds them.

    python -m benchmarks.planner_optimum --smallest --cases 20

asks for less memory than any placement needs, whatever recomputes and with every named schedule:
the limit that the refusal names must work, and must be no larger than the enumeration's least.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import symgraph as sg
from partitioner import Placement
from partitioner.base.stages import form_stages
from partitioner.costs.machine import Device, Level, Machine
from partitioner.strategies.coarse import coarsen
from partitioner.strategies.types import Constraints
from runtime.planning.account import memory_plan
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.draft import Draft
from runtime.planning.network import Network, PlanRequest, make_network
from runtime.planning.options import Options
from runtime.planning.placement_bound import PlacementBound
from runtime.planning.planner import plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import Run
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program
from runtime.schedule.replay import Simulator, memory_profile
from symgraph.command_line import OK, Parser, status_of
from symgraph.core.context import cpu
from symgraph.core.errors import LimitError, PlacementError, ScheduleError
from symgraph.core.types import Array, TensorType
from symgraph.core.units import seconds_text
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

ROWS = 64  # samples of a micro-batch
WIDTHS = (32, 64, 128, 256)
PLACEMENTS = 70_000  # the most of one case
LIMITED = 4096  # with a memory limit
FEW = 256  # where the least memory of all placements is looked for
EVENEST, PACKED = 6, 10  # placements, and plans of them, that may need the least memory
GOOD, WORST = 1.02, 1.05  # times the optimum: of 97 % of the cases, and of all
RATIOS = (1.0, 3.0)


class Case(NamedTuple):
    """A network to plan on a machine."""

    symbol: Symbol
    machine: Machine
    micro_batches: int
    width: int  # of the data
    memory: int | None = None

    @property
    def options(self) -> Options:
        """The options that leave everything to the planner."""
        return Options(
            default=self.machine.contexts[0],
            devices=self.machine.contexts,
            micro_batches=self.micro_batches,
            strategy="auto",
            splits=False,  # the enumeration knows neither grids nor groups on several devices
            schedule="auto",
            recompute="auto" if self.memory else (),
            memory=self.memory,
            machine=self.machine,
            update=True,
            pricing=always(CostModel.of_machine(self.machine)),
        )

    @property
    def feeds(self) -> dict[str, Feed]:
        return {"data": Feed(TensorType((ROWS * self.micro_batches, self.width), "float32"))}

    def network(self) -> Network:
        wrt = tuple([name for name in self.symbol.list_arguments() if name != "data"])
        request = PlanRequest(self.symbol, self.feeds, wrt, False, {}, {})
        return make_network(request, self.options, {})


class Optimum(NamedTuple):
    """The best of all placements."""

    seconds: float
    device_of: tuple[int, ...]
    schedule: str
    placements: int
    simulated: int
    peak: int = 0
    again: tuple[int, ...] = ()
    """The stages that recompute."""


# -- random cases --------------------------------------------------------------------------------


def random_case(seed: int, *, limited: bool, most: int | None = None) -> Case:
    """Draw a network with no more than `most` placements, and a machine."""
    rng = np.random.default_rng(seed)
    machine = _random_machine(rng)
    most = most or (LIMITED if limited else PLACEMENTS)
    count = min(16, int(np.log(most) / np.log(len(machine.devices)) + 1e-9))
    symbol, width = _random_network(rng, int(rng.integers(max(4, count - 4), count + 1)))
    return Case(symbol, machine, int(rng.choice([1, 2, 4, 8])), width)


def _random_machine(rng: np.random.Generator) -> Machine:
    k = int(rng.integers(2, 5))
    mixed = rng.random() < 0.6
    flops = 2e9 * rng.choice(RATIOS, k) if mixed else np.full(k, 2e9)
    hosts = rng.integers(0, 2, k) if k > 2 and rng.random() < 0.3 else np.zeros(k, int)
    devices = tuple(
        Device(cpu(i), float(flops[i]), 1e-5, 2e10, node=str(hosts[i])) for i in range(k)
    )
    latency, bandwidth = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(7.3, 9.5)
    links = {"network": Level(float(4 * latency), float(bandwidth / 4))}
    if rng.random() < 0.5:
        links["node"] = Level(float(latency), float(bandwidth))
    return Machine(devices, links)


def _random_network(rng: np.random.Generator, count: int) -> tuple[Symbol, int]:
    """Draw a graph of `count` operators; the last ones gather what nobody reads into a loss."""
    first = int(rng.choice(WIDTHS))
    made: list[tuple[Symbol, int]] = [(sg.sym.Variable("data"), first)]
    unread: list[int] = []

    def put(symbol: Symbol, width: int, sources: Sequence[int]) -> None:
        for at in sources:
            if at in unread:
                unread.remove(at)
        unread.append(len(made))
        made.append((symbol, width))

    while len(made) + len(unread) <= count:  # with the joins to come and the loss
        pair = rng.integers(max(0, len(made) - 5), len(made), 2).tolist()
        (a, wide), (b, other) = made[pair[0]], made[pair[1]]
        name = f"n{len(made)}"
        if pair[0] != pair[1] and 0 not in pair and rng.random() < 0.4:
            same = wide == other
            joined = (
                sg.sym.elemwise_add(a, b, name=name)
                if same
                else sg.sym.Concat(a, b, dim=1, name=name)
            )
            put(joined, wide if same else wide + other, pair)
        else:
            out = int(rng.choice(WIDTHS))
            put(sg.sym.FullyConnected(a, num_hidden=out, name=name), out, pair[:1])
    while len(unread) > 1:
        a, b = unread[:2]
        joined = sg.sym.Concat(made[a][0], made[b][0], dim=1, name=f"n{len(made)}")
        put(joined, made[a][1] + made[b][1], [a, b])
    return sg.sym.MakeLoss(made[-1][0], name="loss"), first


# -- enumeration ---------------------------------------------------------------------------------


class Enumeration:
    """All placements of a case, with lower bounds of their steps."""

    def __init__(self, case: Case) -> None:
        self.case, self.network = case, case.network()
        self.prices = CostModel.of_machine(case.machine)
        graph, machine = self.network.first, case.machine
        constraints = Constraints(parameters=self.network.parameters, grads=self.network.grads)
        kernels = self.prices.merged(graph, machine.contexts)
        self.coarse = coarsen(graph, kernels, machine, constraints, contiguous=False)
        parts = self.coarse.parts
        self.devices = np.array([*product(range(len(machine.devices)), repeat=len(parts))], np.int8)
        self.devices = self.devices[self._first_of_alike()]
        self.part_of = {c: i for i, part in enumerate(parts) for c in part}
        columns = [self.part_of[c] for c in range(len(self.coarse))]
        bound = PlacementBound(self.network, case.options, self.coarse, kernels, self.prices)
        self.bounds = bound.of(self.devices[:, columns])
        self.statics = self._statics()

    def _first_of_alike(self) -> Array:
        """Tell which placements use equal devices in the order of their numbers."""
        rows, k = self.devices, len(self.case.machine.devices)
        never = rows.shape[1]
        first = np.stack(
            [np.where((rows == d).any(1), (rows == d).argmax(1), never + d) for d in range(k)]
        )
        keep = np.ones(len(rows), bool)
        for a, b in combinations(range(k), 2):
            x, y = self.case.machine.devices[a], self.case.machine.devices[b]
            if (x.speed, x.place("node")) == (y.speed, y.place("node")):
                keep &= first[a] < first[b]
        return keep

    def _statics(self) -> Array:
        """Bound the bytes of the fullest device by its parameters and their gradients."""
        held = np.zeros((len(self.devices), len(self.case.machine.devices)))
        for node in self.network.first.variables:
            if node.name in self.network.parameters:
                at = self.devices[:, self.part_of[self.coarse.of[node.name]]]
                held[np.arange(len(at)), at] += 2 * node.types[0].nbytes
        most: Array = held.max(axis=1)
        return most

    def placement(self, devices: Sequence[int]) -> Placement:
        rank_of = {n: int(devices[self.part_of[c]]) for n, c in self.coarse.of.items()}
        stage_of, rank_of_stage = form_stages(self.network.first, rank_of)
        return Placement(stage_of, rank_of_stage, self.case.machine.contexts)

    def best(self) -> Optimum:
        """Simulate every placement whose bound is below the best step, within the limit if any."""
        best, limit = Optimum(np.inf, (), "", len(self.bounds), 0), self.case.memory
        for at in np.argsort(self.bounds, kind="stable"):
            if self.bounds[at] >= best.seconds:
                break
            if limit is not None and self.statics[at] > limit:
                continue
            best = best._replace(simulated=best.simulated + 1)
            devices = tuple(self.devices[at].tolist())
            for trial in self._trials(devices, best.seconds):
                assert trial.seconds >= self.bounds[at] * (1 - 1e-9), (devices, trial)
                if trial.seconds < best.seconds:
                    best = trial._replace(placements=best.placements, simulated=best.simulated)
        return best

    def limited(self, share: float) -> int:
        """Choose a memory limit: `share` times the least that some even placements need."""
        evenest = np.argsort(self.statics, kind="stable")[:EVENEST]
        tried = chain.from_iterable(map(self._peaks, evenest))
        least = sorted(tried, key=lambda trial: trial.peak)[:PACKED]
        return int(share * min(map(self._packed, least)))

    def least_memory(self) -> int:
        """Return the bytes below which no placement has a plan, by enumeration."""
        least = sys.maxsize
        for at in np.argsort(self.statics, kind="stable"):
            if self.statics[at] >= least:
                break
            for trial in sorted(self._peaks(at), key=lambda trial: trial.peak):
                if trial.peak >= least:
                    break
                least = min(least, self._packed(trial))
        return least

    def _peaks(self, at: int) -> Iterator[Optimum]:
        """Yield the bytes of a placement with every schedule and set of stages that recompute."""
        devices = tuple(self.devices[at].tolist())
        placement = self.placement(devices)
        for again in _subsets(placement.stages):
            for name, seconds, peak in self._steps(placement, again):
                yield Optimum(seconds, devices, name, 0, 0, peak, again)

    def _trials(self, devices: tuple[int, ...], below: float) -> Iterator[Optimum]:
        """Yield the steps of a placement that are shorter and keep the limit."""
        placement, limit = self.placement(devices), self.case.memory
        fit: dict[str, list[set[int]]] = {}
        for again in _subsets(placement.stages) if limit is not None else [()]:
            for name, seconds, peak in self._steps(placement, again):
                if seconds >= below or any(held <= {*again} for held in fit.get(name, ())):
                    continue  # what recomputes more takes longer
                trial = Optimum(seconds, devices, name, 0, 0, peak, again)
                if limit is not None and peak <= limit:
                    trial = trial._replace(peak=self._packed(trial))
                if limit is None or trial.peak <= limit:
                    fit.setdefault(name, []).append({*again})
                    yield trial

    def _packed(self, trial: Optimum) -> int:
        """Return the bytes of the fullest rank as its memory is laid out."""
        draft = Draft(self.network, self.placement(trial.device_of), self.case.options)
        lists = _lists(trial.schedule, draft.placement.rank_of, self.case.micro_batches)
        split = _splits_backward(lists)
        programs = partial(lower, compute_lists=lists, update=True)
        return draft.plan(trial.schedule, split, programs, None, trial.again).choice.peak

    def _steps(
        self, placement: Placement, again: tuple[int, ...]
    ) -> Iterator[tuple[str, float, int]]:
        """Yield name, seconds and bytes of each schedule that differs from those before it."""
        draft = Draft(self.network, placement, self.case.options)
        mbs, limited = self.case.micro_batches, self.case.memory is not None
        seen: set[bytes] = set()
        simulators: dict[bool, Any] = {}
        for name in SCHEDULES:
            lists = _lists(name, placement.rank_of, mbs)
            key = b"|".join(program.tobytes() for program in lists)
            if key in seen:
                continue
            seen.add(key)
            split = _splits_backward(lists)
            if split not in simulators:
                cut = draft.cut(split, None, again)
                costs = self.prices.costs(cut, draft.overheads(cut))
                simulators[split] = cut, Simulator(cut, costs)
            cut, simulator = simulators[split]
            schedule = lower(cut, lists, update=True)
            peak = 0
            if limited:
                bodies = memory_plan(cut, draft.network, draft.options)
                peak = max(m.peak for m in memory_profile(schedule, cut, bodies, mbs))
            with suppress(ScheduleError):  # not every schedule fits stages that go back and forth
                yield name, simulator.makespan(schedule), peak


def _splits_backward(lists: Sequence[Program]) -> bool:
    return any(isinstance(i, Run) and i.phase in "IW" for i in chain.from_iterable(lists))


@cache
def _lists(name: str, rank_of: tuple[int, ...], mbs: int) -> list[Program]:
    return [Program.of(runs) for runs in SCHEDULES[name](rank_of, mbs)]


def _subsets(stages: int) -> list[tuple[int, ...]]:
    """List the sets of stages that may recompute; of many stages, only none and all."""
    if stages > 4:
        return [(), tuple(range(stages))]
    sizes = range(stages + 1)
    return list(chain.from_iterable(combinations(range(stages), n) for n in sizes))


def compare(seed: int, *, limited: bool) -> dict[str, Any]:
    """Plan a random case both ways."""
    case = random_case(seed, limited=limited)
    begun = time.process_time()
    if limited:
        share = float(np.random.default_rng(seed).uniform(1.0, 1.5))
        case = case._replace(memory=1 << 60)
        case = case._replace(memory=Enumeration(case).limited(share))
    best = Enumeration(case).best()
    enumerated, planned = time.process_time(), None
    try:
        planned = plan(case.symbol, case.feeds, case.options, wrt=None)
    except (PlacementError, ScheduleError) as error:
        print(f"seed {seed}: {error}", file=sys.stderr)
    seconds = planned.choice.seconds if planned is not None else None
    ended = time.process_time()
    return {
        "seed": seed,
        "devices": len(case.machine.devices),
        "micro_batches": case.micro_batches,
        "memory": case.memory,
        "classes": len(best.device_of),
        "placements": best.placements,
        "simulated": best.simulated,
        "optimum": best.seconds,
        "device_of": best.device_of,
        "schedule": best.schedule,
        "auto": seconds,
        "ratio": np.inf if seconds is None else seconds / best.seconds,
        "enumeration_seconds": enumerated - begun,
        "planning_seconds": ended - enumerated,
    }


def smallest(seed: int) -> bool:
    """Compare the limit that a refusal names with the least memory of all placements."""
    case = random_case(seed, limited=True, most=FEW)._replace(memory=sys.maxsize)
    least = Enumeration(case).least_memory()
    limit = least - 1
    while (named := _named(case._replace(memory=limit))) <= limit:
        limit = named - 1  # the planner knows schedules that the enumeration does not
    works = _named(case._replace(memory=named)) <= named
    print(
        f"seed {seed}: named {named}, {named / least:.4f} of the enumeration's least; "
        f"a plan within it {'works' if works else 'FAILS'}",
        flush=True,
    )
    return works and named <= least


def _named(case: Case) -> int:
    """Return the bytes of the plan that fits a limit, or the limit that the refusal names."""
    try:
        return plan(case.symbol, case.feeds, case.options, wrt=None).choice.peak
    except LimitError as error:
        return error.smallest


def show(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the distribution of ratios; return whether it is as good as it should be."""
    ratios = np.array([row["ratio"] for row in rows])
    refused = [row["seed"] for row in rows if not np.isfinite(row["ratio"])]
    good = float((ratios <= GOOD + 1e-9).mean())
    high = float(np.quantile(ratios, 0.97, method="lower"))
    print(
        f"{len(rows)} cases: auto / optimum: median {np.median(ratios):.3f}, 97 % {high:.3f}, "
        f"worst {ratios.max():.3f}; {good:.1%} within {GOOD}; refused though a plan fits: "
        f"{refused or 'none'}"
    )
    for row in sorted(rows, key=lambda r: -r["ratio"])[:10]:
        print(
            f"  seed {row['seed']}: {row['ratio']:.3f} ({row['devices']} devices, "
            f"{row['classes']} classes, {row['micro_batches']} micro-batches, "
            f"memory {row['memory']}), optimum {seconds_text(row['optimum'])} with "
            f"{row['schedule']} on {''.join(map(str, row['device_of']))}"
        )
    return good >= 0.97 and ratios.max() <= WORST and not refused


def run() -> int:
    """Run the command line."""
    form = argparse.RawDescriptionHelpFormatter
    prog = "python -m benchmarks.planner_optimum"
    parser = Parser(prog=prog, description=__doc__, formatter_class=form)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--limited", type=int, default=4, help="one in so many has a memory limit")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON lines, added to")
    parser.add_argument("--smallest", action="store_true", help="check the limits of refusals")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.cases)
    if options.smallest:
        return OK if all([smallest(seed) for seed in seeds]) else 1
    rows = _known(options.results)
    for seed in seeds:
        limited = bool(options.limited) and seed % options.limited == options.limited - 1
        if any((row["seed"], row["memory"] is not None) == (seed, limited) for row in rows):
            continue
        rows.append(row := compare(seed, limited=limited))
        print(
            f"seed {seed}: {row['ratio']:.4f}, {row['simulated']} of {row['placements']} "
            f"placements in {seconds_text(row['enumeration_seconds'])}, planned in "
            f"{seconds_text(row['planning_seconds'])}",
            file=sys.stderr,
            flush=True,
        )
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return OK if show(rows) else 1


def _known(results: Path | None) -> list[dict[str, Any]]:
    """Read the cases of a file of results."""
    if results is None or not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(status_of(run))
