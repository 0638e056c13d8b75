"""Counter-based random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core import rand
from symgraph.core.errors import DTypeError

COUNTERS = np.arange(200_000)
DRAWS = [rand.bits, rand.uniform, rand.normal]


def draw(kind, key, counters, dtype=np.float64):
    return kind(np, key, counters, *([] if kind is rand.bits else [dtype]))


def splitmix64(seed, n):
    """The generator as published, one state at a time."""
    for _ in range(n):
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = seed
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]),
    ],
)
def test_bits_are_splitmix64(seed, published):
    assert rand.bits(np, seed, np.arange(3)).tolist() == published
    assert rand.bits(np, seed, np.arange(50)).tolist() == list(splitmix64(seed, 50))


def test_bits_wrap_around_without_a_warning():
    key, far = 2**64 - 1, np.array([2**64 - 1, 2**63], dtype=np.uint64)
    assert rand.bits(np, key, far)[0] == next(splitmix64((key - 0x9E3779B97F4A7C15) % 2**64, 1))


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 4)])
def test_shape_is_that_of_the_counters(kind, shape):
    counters = np.arange(int(np.prod(shape))).reshape(shape)
    got = draw(kind, 5, counters)
    assert isinstance(got, np.ndarray)
    assert got.shape == shape
    assert got.reshape(-1).tolist() == draw(kind, 5, counters.reshape(-1)).tolist()


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("size", [1, 7, 64, 999])
def test_pieces_are_bitwise_the_whole(kind, size):
    whole = draw(kind, 9, COUNTERS[:3000])
    pieces = [draw(kind, 9, COUNTERS[i : min(i + size, 3000)]) for i in range(0, 3000, size)]
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("kind", DRAWS)
def test_order_and_type_of_counters_do_not_matter(kind):
    whole = draw(kind, 9, COUNTERS)
    backwards = draw(kind, 9, COUNTERS[::-1])
    assert np.array_equal(backwards[::-1], whole)
    assert np.array_equal(draw(kind, 9, COUNTERS.astype(np.int32)), whole)


def test_counters_are_left_alone():
    counters = np.arange(10, dtype=np.uint64)
    rand.normal(np, 1, counters, np.float64)
    assert counters.tolist() == list(range(10))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_uniform_moments(dtype):
    u = rand.uniform(np, rand.key(3), COUNTERS, dtype)
    assert u.dtype == dtype
    assert u.min() >= 0
    assert u.max() < 1
    u = u.astype(np.float64)
    half_step = 2.0**-12 if dtype == np.float16 else 0.0
    assert abs(u.mean() + half_step - 1 / 2) < 5 / np.sqrt(12 * u.size)
    assert abs(u.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / u.size)
    assert np.histogram(u, 16, (0, 1))[0].min() > u.size / 16 - 5 * np.sqrt(u.size / 16)


def test_uniform_float32_is_float64_cut_short():
    single = rand.uniform(np, 8, COUNTERS, np.float32)
    double = rand.uniform(np, 8, COUNTERS, np.float64)
    assert np.array_equal(single, np.floor(double * 2**24) / 2**24)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_moments(dtype):
    x = rand.normal(np, rand.key(4), COUNTERS, dtype)
    assert x.dtype == dtype
    assert np.isfinite(x).all()
    x = x.astype(np.float64)
    for power, moment, spread in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((x**power).mean() - moment) < 5 * np.sqrt(spread / x.size), power
    assert abs((np.abs(x) > 1.959963985).mean() - 0.05) < 5 * np.sqrt(0.05 * 0.95 / x.size)


@pytest.mark.parametrize("kind", [rand.uniform, rand.normal])
def test_neighbours_and_other_keys_are_uncorrelated(kind):
    streams = [draw(kind, rand.key(1, "layer", i), COUNTERS) for i in range(3)]
    streams += [np.roll(streams[0], 1), draw(kind, rand.key(2, "layer", 0), COUNTERS)]
    r = np.corrcoef(streams)
    assert np.abs(r - np.eye(len(streams))).max() < 5 / np.sqrt(COUNTERS.size)


def test_keys_tell_parts_apart():
    parts = [(), (1,), ("1",), (1, 1), (11,), ("a", "b"), ("ab",), ("a", "b", ""), ("a,b",), (-1,)]
    keys = {rand.key(7, *p) for p in parts} | {rand.key(8, *p) for p in parts}
    assert len(keys) == 2 * len(parts)
    assert rand.key(7, np.int64(1)) == rand.key(7, 1)


def test_keys_stay_the_same_between_versions():
    """Checkpoints hold the seed only: a changed key would change dropout after a resume."""
    assert rand.key(1, "init", "fc1_weight") == 0xCB20D052C20D0ED4


@pytest.mark.parametrize("kind", [rand.uniform, rand.normal])
def test_only_floats(kind):
    with pytest.raises(DTypeError, match="no random numbers of type 'int32': ask for one of"):
        kind(np, 1, COUNTERS, np.int32)
