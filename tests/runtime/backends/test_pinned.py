"""Pinned buffers: copies of what is fed to a GPU finish later, from memory that nobody writes."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.device import arrays
from runtime.backends.device import pinned as module
from runtime.backends.device.pinned import PAGEABLE_BYTES, PinnedBuffers
from symgraph import gpu
from symgraph.core.types import TensorType
from tests.fakes.fake_cupy import fake_cupy

LARGE = TensorType((PAGEABLE_BYTES // 8 + 1,), "float64")


@pytest.fixture
def here(monkeypatch):
    """A card on which copies are under way until somebody waits for it."""
    made = []

    def pinned(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    monkeypatch.setattr(module, "pinned", pinned)
    with fake_cupy():
        device = arrays.device(gpu(0))
        device.made = made
        with device.use():
            yield device


def test_a_buffer_is_used_again_when_what_came_from_it_is_there(here):
    buffers, memory = PinnedBuffers(), here.bytes(4 * LARGE.nbytes)
    first, second = (here.view(memory, at, LARGE) for at in (0, 2 * LARGE.nbytes))
    for step in range(3):
        for target in (first, second):
            buffers.feed(target, np.full(LARGE.shape, step))
        assert len(here.made) == 2
        here.finish()
        assert arrays.on_host(first).tolist() == arrays.on_host(second).tolist()
        assert float(first[0]) == step


def test_what_is_little_or_here_already_takes_none(here):
    buffers, memory = PinnedBuffers(), here.bytes(2 * LARGE.nbytes)
    little = here.view(memory, 0, TensorType((3,), "float64"))
    buffers.feed(little, np.ones(3))
    there = here.view(memory, LARGE.nbytes // 512 * 512 + 512, TensorType((5,), "float64"))
    buffers.feed(there, here.put(np.ones(5)))
    host = np.zeros(LARGE.shape)
    buffers.feed(host, np.ones(LARGE.shape))
    assert (host == 1).all()
    assert not here.made
