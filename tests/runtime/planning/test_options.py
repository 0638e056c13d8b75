"""What plans and sessions are given by programs: every mistake is told before anything runs."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from partitioner.costs.cost import Speed
from partitioner.costs.machine import Machine
from runtime.engine.session import Session, initialize
from runtime.planning.costs.prices import NOMINAL, always
from runtime.planning.options import (
    MemoryOptions,
    NetworkOptions,
    Options,
    PlacementOptions,
    PrecisionOptions,
    ScheduleOptions,
)
from runtime.planning.planner import plan
from runtime.transports import ThreadCluster
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError, GraphError, MicroBatchError, PlacementError, RunError
from symgraph.core.types import TensorType
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import Uniform
from symgraph.frontend.optimizer import SGD
from symgraph.passes.batching import Feed

FEED = Feed(TensorType((4, 3), "float32"))


def planned(feed=FEED, wrt=None, **given):
    with AttrScope(ctx_group="all"):
        x = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc")
    loss = sym.sum(x, name="loss")
    given = {"groups": {"all": cpu(0)}, "update": True} | given
    return plan(loss, {"x": feed}, Options(**given), wrt=wrt)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"groups": {"all": "cpu(0)"}}, TypeError, "'all' is mapped to is a device .* not 'cpu"),
        ({"groups": {"all": 0}}, TypeError, "'all' is mapped to is a device .* not 0"),
        ({"groups": {"all": [cpu(0), 1]}}, TypeError, "'all' is mapped to is a device .* not 1"),
        ({"devices": (cpu(0), "gpu")}, TypeError, "devices is a device like .* not 'gpu'"),
        ({"devices": "cpu(0)"}, TypeError, "devices is a device like .* not 'cpu"),
        ({"default": 1}, TypeError, "default is a device like .* not 1"),
        ({"schedule": "1f1"}, ConfigError, "no schedule '1f1'; did you mean '1f1b'"),
        ({"schedule": "forwards"}, ConfigError, "no schedule 'forwards'; did you mean 'forward'"),
        ({"schedule": "1f1", "wrt": ()}, ConfigError, "no schedule '1f1'"),
        ({"strategy": "auto2"}, PlacementError, "no strategy 'auto2'; did you mean 'auto'"),
        ({"micro_batches": "4"}, TypeError, "micro_batches is a whole number or 'auto', not '4'"),
        (
            {"time_segment": "5"},
            TypeError,
            "time_segment is a whole number, 'auto' or None, not '5'",
        ),
        (
            {"time_segment": 2.5},
            TypeError,
            "time_segment is a whole number, 'auto' or None, not 2.5",
        ),
        ({"feed": ((4, 3), "float32")}, TypeError, r"feeds: 'x' is a Feed\(TensorType"),
        ({"feed": FEED.type}, TypeError, r"feeds: 'x' is a Feed\(TensorType"),
        ({"feed": Feed(FEED.type, 2)}, MicroBatchError, "has no batch axis 2; use 0 to 1"),
        ({"feed": Feed(FEED.type, -1)}, MicroBatchError, "has no batch axis -1; use 0 to 1"),
    ],
)
def test_a_plan_is_asked_for_by_what_it_knows(given, error, words):
    with pytest.raises(error, match=words):
        planned(**given)


@pytest.mark.parametrize(
    ("given", "optimizer", "error", "words"),
    [
        ({}, "sgd", TypeError, "optimizer must be one of symgraph.optimizer, not 'sgd'"),
        ({"update": False}, SGD(), RunError, "the plan has no updates"),
        ({"wrt": ()}, SGD(), RunError, r"the plan has no gradients: plan\(..., wrt=None\)"),
    ],
)
def test_an_optimizer_trains_or_is_refused(given, optimizer, error, words):
    made = planned(**given)
    with ThreadCluster(1) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), 0)
        with pytest.raises(error, match=words):
            Session(made, cluster, arrays, optimizer=optimizer)


def test_a_cluster_has_a_rank_for_each_of_the_plan():
    made = planned()
    with ThreadCluster(1) as right, ThreadCluster(2) as wrong:
        with pytest.raises(RunError, match="the plan has 1 ranks, but the cluster has 2"):
            initialize(made, wrong, Uniform(0.1), 0)
        arrays = initialize(made, right, Uniform(0.1), 0)
        with pytest.raises(RunError, match="the plan has 1 ranks, but the cluster has 2"):
            Session(made, wrong, arrays)


def test_what_is_fed_is_an_array():
    made = planned()
    with ThreadCluster(1) as cluster:
        session = Session(made, cluster, initialize(made, cluster, Uniform(0.1), 0))
        with pytest.raises((GraphError, RunError), match="'x' is given a list, not an array"):
            session.step({"x": [[0.0] * 3] * 4})
        session.step({"x": np.zeros((4, 3), "float32")})


# -- options ---------------------------------------------------------------------------------------


def test_an_options_is_every_concern_and_its_fields_are_flat():
    concerns = (NetworkOptions, ScheduleOptions, PlacementOptions, MemoryOptions, PrecisionOptions)
    options = Options({"all": cpu(0)}, cpu(1), (cpu(0), cpu(1)), "1f1b", 3, memory=8)
    assert all(isinstance(options, concern) for concern in concerns)
    names = [{f.name for f in fields(concern)} for concern in concerns]
    assert {f.name for f in fields(Options)} == set.union(*names) | {"pricing"}
    assert (options.default, options.schedule, options.micro_batches) == (cpu(1), "1f1b", 3)
    with pytest.raises(TypeError):
        Options(None, cpu(), (), "gpipe", 1, {})


@pytest.mark.parametrize("strategy", ["auto", "chain"])
def test_a_strategy_places_on_the_devices_that_are_asked_for(strategy):
    """With a machine, devices were ignored: a plan for one of them took all."""
    on = Machine.uniform([cpu(i) for i in range(3)], Speed(1e9, 1e-6), 1e-6, 1e10)
    asked = {"groups": None, "strategy": strategy, "machine": on, "micro_batches": 2}
    asked["pricing"] = always(NOMINAL)
    one = planned(default=cpu(1), devices=(cpu(1),), **asked)
    assert one.placement.devices == (cpu(1),)
    assert planned(devices=(cpu(2), cpu(0)), **asked).placement.devices == (cpu(2), cpu(0))
    assert planned(**asked).placement.devices == on.contexts
    with pytest.raises(ConfigError, match=r"the machine has no device cpu\(3\)"):
        planned(devices=(cpu(0), cpu(3)), **asked)


def test_another_plan_follows_where_this_one_chose():
    made = planned(time_segment="auto", recompute="all", memory=1 << 20)
    options = made.following(memory=None)
    assert options.like.placement == made.placement
    assert (options.time_segment, options.recompute) == (None, (0,))
    assert options.memory is None
    assert planned(**vars(options)).placement.devices == made.devices
    assert made.evaluating().placement == made.placement
    assert not made.evaluating().update


def test_ranks_of_mpiexec_do_not_measure_for_themselves(monkeypatch):
    """Under mpiexec each rank measured for itself, and ranks chose different plans."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert Options().costs(planned().network.first) is NOMINAL


def test_groups_are_not_options():
    """An AttributeError of a dict told nothing."""
    x = sym.Variable("x")
    with pytest.raises(TypeError, match=r"plan takes Options, such as Options\(groups={'a': 0}\)"):
        plan(x, {"x": FEED}, {"a": 0})
    with pytest.raises(TypeError, match=r"feeds maps names to Feed\(...\), .*, not \['x'\]"):
        plan(x, ["x"], Options())


def test_initializers_may_be_named():
    made = planned()
    cluster = ThreadCluster(1)
    named, made_here = (initialize(made, cluster, i, seed=3) for i in ("uniform", Uniform()))
    np.testing.assert_array_equal(named[0]["fc_weight"], made_here[0]["fc_weight"])
    with pytest.raises(GraphError, match="unknown initializer 'unifrom': did you mean 'uniform'"):
        initialize(made, cluster, "unifrom", seed=3)
