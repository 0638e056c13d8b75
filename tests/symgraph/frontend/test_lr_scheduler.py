"""Learning-rate schedules, against the same schedules played update by update."""

from __future__ import annotations

import math
import random

import pytest

from symgraph.core.errors import ConfigError
from symgraph.frontend.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    MultiFactorScheduler,
    PolyScheduler,
    create,
)

UPDATES = range(1, 120)
EACH = [
    FactorScheduler(10, 0.5, base_lr=0.8),
    MultiFactorScheduler([5, 8, 60], 0.1, base_lr=0.8),
    PolyScheduler(100, 0.8),
    CosineScheduler(100, 0.8),
]


@pytest.mark.parametrize("stop", [1e-8, 0.03])
def test_factor_lowers_the_rate_after_each_step(stop):
    schedule = FactorScheduler(10, 0.5, stop, base_lr=0.8)
    rate = 0.8
    for n in UPDATES:
        assert schedule(n) == pytest.approx(rate, rel=1e-12)
        if n % 10 == 0:
            rate = max(rate * 0.5, stop)


def test_multi_factor_lowers_the_rate_after_each_mark():
    schedule = MultiFactorScheduler([5, 8, 60], 0.1, base_lr=2.0)
    rate = 2.0
    for n in UPDATES:
        assert schedule(n) == pytest.approx(rate, rel=1e-12)
        if n in (5, 8, 60):
            rate *= 0.1


def test_poly():
    schedule = PolyScheduler(100, base_lr=1.0, pwr=3, final_lr=0.1)
    assert schedule(50) == pytest.approx(0.1 + 0.9 * 0.5**3)
    assert schedule(100) == schedule(101) == schedule(10_000) == 0.1


def test_cosine():
    schedule = CosineScheduler(100, base_lr=1.0, final_lr=0.2, warmup_steps=20)
    assert schedule(20) == 1.0
    assert schedule(60) == pytest.approx(0.6)
    assert schedule(40) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert schedule(100) == schedule(500) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", [FactorScheduler, PolyScheduler, CosineScheduler])
def test_warm_up(kind):
    linear = kind(100, base_lr=1.0, warmup_steps=10, warmup_begin_lr=0.5)
    assert [linear(n) for n in (1, 5, 9, 10)] == pytest.approx([0.55, 0.75, 0.95, 1.0])
    flat = kind(100, base_lr=1.0, warmup_steps=10, warmup_begin_lr=0.5, warmup_mode="constant")
    assert [flat(n) for n in (1, 9, 10)] == [0.5, 0.5, 1.0]


def test_decay_counts_from_the_start_of_the_warm_up():
    """As in MXNet: marks passed during the warm-up take effect at its end."""
    marks = MultiFactorScheduler([5, 8, 60], 0.1, base_lr=1.0, warmup_steps=20)
    assert marks(20) == pytest.approx(0.01)
    steps = FactorScheduler(5, 0.5, base_lr=1.0, warmup_steps=20)
    assert steps(20) == pytest.approx(0.5**3)


@pytest.mark.parametrize("schedule", EACH)
def test_rates_do_not_depend_on_what_was_asked_before(schedule):
    in_order = {n: schedule(n) for n in UPDATES}
    shuffled = random.Random(1).sample(UPDATES, len(UPDATES))
    assert {n: schedule(n) for n in shuffled} == in_order


@pytest.mark.parametrize("schedule", EACH)
def test_rebased_scales_the_whole_schedule(schedule):
    assert schedule.with_base_lr(1.6)(37) == pytest.approx(2 * schedule(37))
    assert schedule.base_lr == 0.8


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("factor", {"step": 0}, "step is 0 but must be 1 or more"),
        ("factor", {"step": 1.5}, "FactorScheduler: step is 1.5 but must be a whole number"),
        ("factor", {"step": "5"}, "FactorScheduler: step is '5' but must be a whole number"),
        ("factor", {"step": 5, "base_lr": -1.0}, "base_lr is -1.0 but must be 0 or more"),
        ("factor", {"step": 5, "warmup_begin_lr": -1.0}, "warmup_begin_lr is -1.0 but must be 0"),
        ("factor", {"step": 5, "stop_factor_lr": -1.0}, "stop_factor_lr is -1.0 but must be 0"),
        ("poly", {"max_update": 10, "final_lr": -1.0}, "final_lr is -1.0 but must be 0 or more"),
        ("multi_factor", {"step": 5}, "step is 5 but must be a rising list of whole numbers"),
        ("multi_factor", {"step": ["5", "7"]}, "must be a rising list of whole numbers"),
        ("factor", {"step": 1, "factor": 1.5}, "factor is 1.5 but must be above 0"),
        ("multi_factor", {"step": [3, 3]}, r"step is \[3, 3\] but must be a rising list"),
        ("multi_factor", {"step": []}, "must be a rising list"),
        ("multi_factor", {"step": [0, 2]}, "must be a rising list"),
        ("poly", {"max_update": 10, "warmup_steps": 10}, "max_update is 10 but must be 11 or more"),
        ("poly", {"max_update": 10, "pwr": 0}, "pwr is 0 but must be above 0"),
        ("cosine", {"max_update": 0}, "max_update is 0 but must be 1 or more"),
        ("cosine", {"max_update": 9, "warmup_steps": -1}, "warmup_steps is -1"),
        ("cosine", {"max_update": 9, "warmup_begin_lr": 0.1}, "no more than base_lr"),
        ("cosine", {"max_update": 9, "warmup_mode": "quick"}, "must be 'linear' or 'constant'"),
        ("cosine", {"max_updates": 9}, "'cosine': .*argument.*it takes max_update, base_lr"),
        ("poli", {"max_update": 10}, "unknown lr_scheduler 'poli': did you mean 'poly'"),
    ],
)
def test_create_refuses(kind, arguments, message):
    with pytest.raises(ConfigError, match=message):
        create(kind, **arguments)


def test_create():
    assert create("factor", step=10, factor=0.5, base_lr=0.8) == EACH[0]
    assert create("multi_factor", step=[5, 8, 60], factor=0.1, base_lr=0.8) == EACH[1]
    assert create("poly", max_update=100, base_lr=0.8) == EACH[2]
    assert create("cosine", max_update=100, base_lr=0.8) == EACH[3]
