"""Parcels: what is copied how, between which devices, and that nobody reads too early."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.cuda import copies
from runtime.backends.cuda.copies import PIECE
from runtime.backends.device import arrays, settings
from runtime.backends.parcels import Parcel
from symgraph import cpu, gpu
from symgraph.core.context import Context
from symgraph.core.types import TensorType
from tests.fakes.fake_cupy import fake_cupy
from tests.fakes.fake_kernels import RawKernel
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason=MISSING)

TYPES = [
    TensorType((3, 5), "float32"),
    TensorType((PIECE // 8 + 7,), "float64"),  # more than a block's
    TensorType((0, 4), "float32"),
    TensorType((13,), "uint8"),
    TensorType((), "int64"),
    TensorType((2, 8), "float16"),
]
MEMORY = 3 * PIECE


@pytest.fixture(autouse=True)
def _cards(monkeypatch):
    """Contexts 0 and 2 share a card, 1 has another."""
    monkeypatch.setenv(settings.SHARE_GPUS, "1")
    with fake_cupy(cards=2):
        yield


@pytest.fixture
def launches(monkeypatch):
    """The names of kernels that are launched."""
    found = []
    launch = RawKernel._launch

    def noted(kernel, *given):
        found.append(kernel.name)
        launch(kernel, *given)

    monkeypatch.setattr(RawKernel, "_launch", noted)
    return found


def parcel(context: Context, gap: int, seed: int | None = None) -> Parcel:
    """Values, or zeros, in one memory with gaps of some bytes."""
    here, rng = arrays.device(context), np.random.default_rng(seed)
    with here.use():
        memory, views, at = here.bytes(MEMORY), [], gap
        for type_ in TYPES:
            at += -at % np.dtype(type_.dtype).itemsize
            views.append(here.view(memory, at, type_))
            if seed is not None:
                raw = rng.integers(0, 255, type_.nbytes, np.uint8)
                arrays.copy(views[-1], raw.view(type_.dtype).reshape(type_.shape))
            at += type_.nbytes + gap
        here.finish()
        return Parcel(views)


def bytes_of(given: Parcel) -> list[bytes]:
    with arrays.beside(given.arrays[0]):
        return [arrays.on_host(array).tobytes() for array in given.arrays]


@pytest.mark.parametrize("gap", [16, 8, 1])
@pytest.mark.parametrize(
    ("source", "target", "kernels"),
    [
        (gpu(0), gpu(2), 1),
        (gpu(1), gpu(1), 1),
        (gpu(0), gpu(1), 0),
        (cpu(0), gpu(0), 0),
        (gpu(0), cpu(0), 0),
        (cpu(0), cpu(1), 0),
    ],
    ids=str,
)
def test_all_bytes_arrive_between_any_two_devices(launches, source, target, kernels, gap):
    sent, out = parcel(source, gap, 1), parcel(target, gap)
    around = bytes_of(out)
    assert around != bytes_of(sent)
    for _ in range(2):
        with arrays.device(target).use():
            out.fill(sent)
            arrays.device(target).finish()
    assert bytes_of(out) == bytes_of(sent)
    assert launches == ["copy_pieces"] * 2 * kernels


def test_nothing_else_is_written():
    here = arrays.device(gpu(0))
    types = [TensorType((n,), "uint8") for n in (5, 33, 16)]
    with here.use():
        memory, more = here.bytes(256), here.bytes(256)
        memory[...] = 7
        sent = Parcel([here.view(more, at, t) for at, t in zip((0, 16, 64), types, strict=True)])
        Parcel([here.view(memory, a, t) for a, t in zip((16, 49, 128), types, strict=True)]).fill(
            sent
        )
        here.finish()
        found = arrays.on_host(memory)
    left = np.full(256, 7)
    left[16:21] = left[49:82] = left[128:144] = 0
    assert found.tolist() == left.tolist()


def test_the_table_of_a_copy_is_made_once(monkeypatch):
    sent, other, out = parcel(gpu(0), 8, 1), parcel(gpu(0), 8, 2), parcel(gpu(2), 8)
    made, bind = [], copies.bind
    monkeypatch.setattr(copies, "bind", lambda places: made.append(1) or bind(places))
    with arrays.device(gpu(2)).use():
        for source in (sent, other, sent, other):
            out.fill(source)
            arrays.device(gpu(2)).finish()
            assert bytes_of(out) == bytes_of(source)
    assert len(made) == 2


def test_a_copy_that_no_event_keeps_behind_the_work_is_noticed():
    sent, out = parcel(gpu(0), 8, 1), parcel(gpu(2), 8)
    first, second = arrays.device(gpu(0)), arrays.device(gpu(2))
    with first.use():
        sent.arrays[1].fill(2)
        made = arrays.mark(sent.arrays[1])
    with second.use(), pytest.raises(AssertionError, match=r"reads what stream .* has written"):
        out.fill(sent)
    with second.use():
        arrays.after(made, out.arrays[0])
        out.fill(sent)
    with first.use(), pytest.raises(AssertionError, match=r"writes what stream .* has read"):
        sent.arrays[4].fill(3)
