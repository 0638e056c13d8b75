"""benchmarks.soak: what counts as growth."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.soak import MEMORY, Sample, growth, open_and_close

MIB = 2**20


def samples(leak: float = 0.0, count: int = 400) -> list[Sample]:
    """Samples of a process that takes 50 MiB while it starts, then `leak` bytes each time."""
    rng = random.Random(1)
    return [
        Sample(
            memory=int(200 * MIB + min(i, 50) * MIB + i * leak + rng.gauss(0, MIB)),
            threads=4 + (rng.random() < 0.1),  # a writer that comes and goes
            descriptors=9,
            files=5 + (rng.random() < 0.1),
        )
        for i in range(count)
    ]


def test_a_warm_up_and_noise_are_no_growth():
    words, grown = growth(samples())
    assert grown == []
    assert "threads 4 +0, descriptors 9 +0, files 5 +0" in words


def test_a_small_leak_is_growth():
    assert growth(samples(leak=3 * MEMORY / 400))[1] == ["memory"]


@pytest.mark.parametrize("what", ["threads", "descriptors", "files"])
def test_one_more_now_and_then_is_growth(what):
    leaking = [replace(s, **{what: getattr(s, what) + i // 100}) for i, s in enumerate(samples())]
    assert growth(leaking)[1] == [what]


@pytest.mark.slow
def test_sessions_open_and_close_without_growth(tmp_path):
    words, grown = open_and_close(tmp_path / "sessions", 4)
    assert words.startswith("4 sessions: memory ")
    assert not {"threads", "descriptors", "files"} & {*grown}
