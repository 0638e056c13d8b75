"""The test that matters most: random network x random placement x schedule x micro-batches."""

from __future__ import annotations

import pytest

from runtime.pipeline import Options
from symgraph.context import cpu
from tests.networks import random_case, random_groups
from tests.pipelines import assert_close, assert_same_bits, judge, on_threads

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

DEVICES = 3


def options(seed: int, schedule: str, micro_batches: int, devices: int = DEVICES) -> Options:
    groups = random_groups(seed, devices)
    everything = tuple(cpu(i) for i in range(devices))
    return Options(groups, cpu(0), everything, schedule, micro_batches)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("seed", range(12))
def test_pipeline_equals_reference(seed, schedule, micro_batches):
    case = random_case(seed)
    got = on_threads(case, options(seed, schedule, micro_batches))
    assert_close(got, judge(case))


@pytest.mark.parametrize("micro_batches", [1, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_placement_and_schedule_change_no_bit(seed, micro_batches):
    case = random_case(seed)
    alone = on_threads(case, Options(micro_batches=micro_batches))
    for other in range(3):
        for schedule in ("gpipe", "1f1b"):
            got = on_threads(case, options(100 * seed + other, schedule, micro_batches))
            assert_same_bits(got, alone)
