"""The winner of a search, written as a config that makes the same plan without searching again."""

from __future__ import annotations

from pathlib import Path

from partitioner.costs.cost import CostTable
from runtime.planning.costs.files import save_prices
from runtime.planning.costs.prices import CostModel, always
from runtime.planning.options import AUTO, FORWARD_ONLY
from runtime.planning.plan import Plan
from runtime.profiling.report.result import Passage
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.search.precision import LossCurves
from runtime.profiling.search.search import Found
from runtime.profiling.trials.baseline import Gain, baseline_of
from runtime.profiling.trials.comparison import Comparison
from runtime.training.job import training_plan
from runtime.training.summary import placement_of
from symgraph.app.config import Config, PipelineConfig
from symgraph.core.errors import SymgraphError
from symgraph.core.tags import lookup
from symgraph.core.units import count_text, seconds_text
from symgraph.core.writing import writing

SHOWN = 12  # candidates in the evidence


def write_winner(
    winner: Candidate,
    found: Found,
    compared: Comparison | None,
    path: Path,
    source: str,
    curves: LossCurves | None = None,
) -> Config:
    """Write the config with the evidence as comments; return what it holds.

    compared: what was measured, if anything was. source: the user's file. curves: the losses of
    two precisions.

    A schedule of the list scheduler goes into a file beside it, and so do the costs if the
    placement is none that `group2ctx` or constraints on nodes can say.
    """
    with writing(path, "cannot write the winner to"):
        config = _pinned(winner, path)
        comments = "".join(
            f"# {line}\n".replace("# \n", "#\n")
            for line in [
                f"found by: symgraph search {source}",
                "",
                *evidence(winner, found, compared).text.split("\n"),
                *([] if curves is None else ["", *curves.passage().text.split("\n")]),
            ]
        )
        path.write_text(comments + config.to_yaml(), encoding="utf-8")
    return config


def gain_of_search(found: Found, compared: Comparison | None) -> Gain | None:
    """Return what the best partition gains over one device, as measured or else as simulated."""
    if compared is not None and compared.gain is not None:
        return compared.gain
    if found.baseline is None and not found.too_large:
        return None
    best = next(c for c in found.candidates if not c.baseline)
    devices, name = best.config.devices, best.name
    if found.baseline is None:
        device = baseline_of(best.config).devices[0]
        return Gain(devices, best.seconds, device, name=name, reason=found.too_large)
    one = found.baseline
    return Gain(
        devices,
        best.seconds,
        one.config.devices[0],
        one.seconds,
        micro_batches=len(one.plan.sizes),
        name=name,
        used=len({*best.plan.placement.rank_of}),
    )


def evidence(
    winner: Candidate, found: Found, compared: Comparison | None, *, verdict: bool = True
) -> Passage:
    """Return what was tried and measured, and how far the winner is from the proved bound.

    verdict: whether to begin with what several devices gain over one.
    """
    ranking = () if compared is None else compared.ranking
    steps = {c.name: c.figures.step for c in ranking}
    gain = gain_of_search(found, compared)
    rows: list[tuple[str, ...]] = [("", "candidate", "predicted", "at least", "measured")]
    for place, candidate in enumerate(found.candidates):
        if place >= SHOWN and candidate is not found.baseline:
            continue
        step = steps.get(candidate.name)
        rows.append(
            (
                "->" if candidate is winner else "",
                candidate.name,
                seconds_text(candidate.seconds),
                seconds_text(candidate.bound),
                "-" if step is None else seconds_text(step),
            )
        )
    lines = [
        *([] if gain is None or not verdict else gain.lines()),
        *([] if compared is None or not verdict else compared.tie_lines()),
        f"{count_text(found.simulated, 'plan')} simulated in {seconds_text(found.seconds)}, "
        f"{len(ranking)} measured in alternation:",
    ]
    return Passage(lines, rows, _notes(winner, found))


def _notes(winner: Candidate, found: Found) -> list[str]:
    """Return how good the winner is, and what these figures are worth."""
    even = winner.even
    lines = [
        f"the winner's predicted step is {winner.seconds / winner.bound - 1:.1%} longer than what "
        f"no schedule of its cut can beat ({seconds_text(winner.bound)}), and "
        f"{winner.seconds / even - 1:.1%} longer than its work spread evenly "
        f"({seconds_text(even)})",
    ]
    if winner.quick:
        lines.append("its placement was found with less effort than planning takes by itself")
    if found.proved or found.unpromising:
        lines.append(
            f"not planned: {count_text(found.proved, 'shape')} that cannot be faster, by bounds, "
            f"and {found.unpromising} that are not likely to be, by estimates"
        )
    if found.left_out:
        left = count_text(found.left_out, "candidate")
        lines.append(f"for lack of time, {left} left out: the limit on seconds was reached")
    if winner.prices.measured:
        for table in winner.prices.kinds.values():
            if isinstance(table, CostTable):
                about = ", ".join(f"{key} {value}" for key, value in table.machine.items())
                lines.append(f"on {about}")
    return lines


def _pinned(winner: Candidate, path: Path) -> Config:
    """Return a config without open choices; tried, so that it really makes the winner's plan.

    Whatever prices a later process measures, it places groups, or else nodes, where the plan has
    them. If neither can say the placement, its file holds the prices by which the planner finds
    it again; and if the planner does not, since a search plans with less effort, the file leaves
    the schedule open as well, since one that is written down would fit no other placement.
    """
    choice = winner.plan.choice
    schedule = choice.schedule
    if schedule == FORWARD_ONLY:  # which no config asks for
        schedule = PipelineConfig().schedule
    if schedule == AUTO:
        schedule = str(path.with_suffix(".schedule.txt"))
        Path(schedule).write_text(f"{winner.plan.schedule}\n", encoding="utf-8")
    pipeline = winner.config.pipeline.model_copy(
        update={
            "schedule": schedule,
            "time_segment": choice.time_segment,
            "recompute": choice.recompute or "none",
        }
    )
    config = winner.config.model_copy(update={"pipeline": pipeline})
    for placed in (_by_groups(config, winner.plan), _by_nodes(config, winner.plan)):
        if _digest(placed, winner.prices) == winner.plan.digest:
            return placed
    if _digest(config, winner.prices) != winner.plan.digest:
        config = winner.config
    if not winner.prices.measured:
        return config
    costs = str(path.with_suffix(".costs.json"))
    save_prices(winner.prices, costs)
    partition = config.partition.model_copy(update={"costs": costs})
    return config.model_copy(update={"partition": partition})


def _by_groups(config: Config, plan: Plan) -> Config:
    """The config with the plan's placement as `group2ctx`."""
    groups = {
        group: tuple(devices) if isinstance(devices, list) else devices
        for group, devices in placement_of(plan).items()
    }
    partition = config.partition.model_copy(update={"strategy": None, "costs": None})
    return config.model_copy(update={"group2ctx": groups, "partition": partition})


def _by_nodes(config: Config, plan: Plan) -> Config:
    """The config with the plan's placement as a constraint on every node.

    Groups on several devices stay as `group2ctx`, since their parts have no names in the network.
    """
    several = {g: tuple(d) for g, d in placement_of(plan).items() if isinstance(d, list)}
    split = {*several, *config.partition.shards, *config.partition.replicas}
    graph, placement = plan.network.first, plan.placement
    pins = {
        node.name: str(placement.devices[placement.rank_of[placement.stage_of[node.name]]])
        for node in graph
        if not (node.origin or node.is_variable or lookup(node.tags, "ctx_group") in split)
    }
    constraints = (*config.partition.constraints, {"pin": pins}) if pins else ()
    update = {"constraints": constraints, "split": "none", "costs": None}
    partition = config.partition.model_copy(update=update)
    return config.model_copy(update={"group2ctx": several, "partition": partition})


def _digest(config: Config, prices: CostModel) -> str:
    """Return the digest of the plan that a config makes; "" if it makes none."""
    try:
        return training_plan(config, always(prices)).training.digest
    except SymgraphError:
        return ""
