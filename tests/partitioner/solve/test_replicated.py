"""Pipelines of replicated stages: the dynamic programme beside all pipelines of small chains."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from partitioner.solve.profile_files import replicated_layers
from partitioner.solve.replicated import Layers, Level, replicate, timed
from symgraph.core.errors import PlacementError

PROFILE = """\
node0 -- Input0 -- forward_compute_time=9, backward_compute_time=0, activation_size=4, \
parameter_size=0
node1 -- Conv -- forward_compute_time=100, backward_compute_time=200, activation_size=10, \
parameter_size=0
node2 -- Linear -- forward_compute_time=40, backward_compute_time=60, activation_size=0, \
parameter_size=1000
\tnode0 -- node1
\tnode1 -- node2
"""


def chain(seed: int, n: int = 5) -> Layers:
    rng = np.random.default_rng(seed)
    seconds, parameters, outputs = rng.random(n), rng.random(n) * 5, rng.random(n)
    return Layers(seconds, parameters, outputs, frozenset((i, i + 1) for i in range(n - 1)))


def cost(layers: Layers, bandwidth: float, start: int, end: int, m: int) -> float:
    """The formula of a stage of a chain."""
    weight = layers.parameters[start:end].sum()
    seconds = (layers.seconds[start:end].sum() + 4 * (m - 1) * weight / (m * bandwidth)) / m
    if not start:
        return float(seconds)
    border = max(layers.outputs[start - 1], layers.outputs[end - 1] * (end < len(layers.outputs)))
    return float(max(seconds, 2 * border / (m * bandwidth)))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_pipeline_of_a_chain_is_what_trying_everything_finds(seed):
    layers, bandwidth, devices = chain(seed), 10.0, 4
    n = len(layers.seconds)
    tried = []
    for stages in range(1, n + 1):
        for cuts in combinations(range(1, n), stages - 1):
            ends = [0, *cuts, n]
            for replicas in product(range(1, devices + 1), repeat=stages):
                if sum(replicas) <= devices:
                    pieces = zip(ends, ends[1:], replicas, strict=False)
                    tried.append(max(cost(layers, bandwidth, *piece) for piece in pieces))
    best = replicate(layers, [Level(devices, bandwidth)])
    assert best.seconds == pytest.approx(min(tried))
    replicas = [stage.replicas for stage in best.stages]
    assert timed(layers, bandwidth, replicas).seconds == pytest.approx(best.seconds)
    assert sorted(v for stage in best.stages for v in stage.layers) == list(range(n))


@pytest.mark.parametrize("seed", range(4))
def test_hosts_of_one_device_are_one_level(seed):
    layers = chain(seed)
    flat = replicate(layers, [Level(4, 10.0)])
    assert replicate(layers, [Level(1, 1e3), Level(4, 10.0)]) == flat
    two = replicate(layers, [Level(2, 1e3), Level(2, 10.0)])
    assert two.seconds >= layers.seconds.sum() / 4
    assert sum(stage.replicas for stage in two.stages) <= 4


def test_a_layer_with_weights_stays_alone_where_the_network_is_slow():
    """As in VGG-16: convolutions are replicated, the dense layers are on the last device."""
    layers = replicated_layers(PROFILE)
    assert layers.seconds.tolist() == [0.3, 0.1]  # without the input
    best = replicate(layers, [Level(4, 1e4)])
    assert (str(best), best.seconds) == ("3-1", pytest.approx(0.1))
    assert timed(layers, 1e4, (4,)).seconds == pytest.approx((0.4 + 3 * 1000 / 1e4) / 4)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlacementError, match="2 layers make no 3 stages"):
        timed(replicated_layers(PROFILE), 1e4, (1, 1, 1))
