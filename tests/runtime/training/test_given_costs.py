"""Files of costs that are another machine's or another network's."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from partitioner.costs.cost import Measured, is_free, signature
from runtime.training.job import training_plan
from symgraph.core.errors import ConfigError
from tests.helpers.profiles import ESTIMATES, config


def said(folder, kernels, machine=()):
    """Plan with a file of these kernels; return the warnings."""
    table = replace(ESTIMATES, measured=dict.fromkeys(kernels, Measured(1e-6, 0.0, 1)))
    (folder / "given.json").write_text(replace(table, machine=dict(machine)).to_json())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        training_plan(config(folder, f"partition.costs={folder / 'given.json'}"))
    return [str(line.message) for line in told]


def test_costs_of_elsewhere_are_told_of(tmp_path):
    graph = training_plan(config(tmp_path)).training.network.first
    calls = [node for node in graph if not (node.is_variable or is_free(node, graph))]
    own = [signature(node, graph) for node in calls]
    assert said(tmp_path, []) == said(tmp_path, own) == []
    (line,) = said(tmp_path, own[1:])
    assert "given.json: kernels of this network are not in it" in line
    (line,) = said(tmp_path, own, {"processor": "Other CPU"})
    assert "given.json: of another machine: processor Other CPU, here " in line
    with pytest.raises(ConfigError, match=r"given.json has none of this network's operators"):
        said(tmp_path, ["Convolution(float32[1,1,1,1]) -> float32[1,1,1,1]"])
