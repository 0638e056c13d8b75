"""Packing: nothing lies on what is held at the same time, and little is left unused."""

from __future__ import annotations

import numpy as np
import pytest

from partitioner.memory.packing import ALIGN, Need, most_held, pack, to_cache_lines


def needs_of(seed: int, count: int) -> list[Need]:
    """Of made-up lives and sizes."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 2 * count, count)
    last = first + rng.integers(0, count, count)
    sizes = rng.choice([64, 192, 640, 1000, 4096], count)
    return [Need(*row) for row in np.stack([first, last, sizes], 1).tolist()]


def held(needs: list[Need]) -> int:
    first, last, size = np.array([(n.first, n.last, to_cache_lines(n.nbytes)) for n in needs]).T
    return most_held(first, last, size)


def require_apart(needs: list[Need], offsets: list[int], total: int) -> None:
    for i, (a, at) in enumerate(zip(needs, offsets, strict=True)):
        assert at % ALIGN == 0
        assert 0 <= at <= total - to_cache_lines(a.nbytes)
        for b, other in zip(needs[:i], offsets, strict=False):
            if a.first <= b.last and b.first <= a.last:
                assert at + a.nbytes <= other or other + b.nbytes <= at


def test_nothing_takes_nothing():
    assert pack([]) == ([], 0)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_at_once_lies_apart(seed):
    needs = needs_of(seed, 60)
    offsets, total = pack(needs)
    require_apart(needs, offsets, total)
    assert held(needs) <= total


def test_the_most_that_is_held_is_counted_moment_by_moment():
    needs = needs_of(3, 40)
    moments = [
        sum(to_cache_lines(n.nbytes) for n in needs if n.first <= now <= n.last)
        for now in range(120)
    ]
    assert held(needs) == max(moments)


def test_a_stack_takes_what_it_holds():
    """Lives within lives, as of a forward and a backward phase."""
    needs = [Need(i, 99 - i, 64 + 64 * (i * 7 % 5)) for i in range(50)]
    offsets, total = pack(needs)
    require_apart(needs, offsets, total)
    assert total == held(needs)


def test_little_is_left_unused_where_no_one_order_is_good():
    """As they come, as they go, by size and by room: the best of them leaves 1.2 % here."""
    spare = [pack(needs)[1] / held(needs) - 1 for needs in map(needs_of, range(40), [60] * 40)]
    assert np.mean(spare) < 0.008
