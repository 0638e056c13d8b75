"""Every kernel is compiled for GPUs, without one: with NVRTC, which CuPy compiles with too."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.backends.cuda.formulas import BY_PACKS
from tests.runtime.backends.cuda.emulation import signatures
from tests.runtime.backends.cuda.sources import SOURCES, variants


def in_wheel(name: str, files: str) -> list[Path]:
    """Files of a package of NVIDIA's, none without it."""
    try:
        found = importlib.util.find_spec(f"nvidia.{name}")
    except ModuleNotFoundError:
        return []
    places = [] if found is None else [Path(p) for p in found.submodule_search_locations or ()]
    return [file for place in places for file in sorted(place.glob(files))]


LIBRARIES = in_wheel("cuda_nvrtc", "lib/libnvrtc.so.*")
HEADERS = in_wheel("cuda_runtime", "include")
CUPY = ("-ftz=true", "--device-as-default-execution-space")  # its own options, besides the chip
NVRTC = ctypes.CDLL(str(LIBRARIES[0])) if LIBRARIES else None
needs_nvrtc = pytest.mark.skipif(
    NVRTC is None or not HEADERS,
    reason="pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12",
)


def text_of(size: Callable[..., int], get: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    count = ctypes.c_size_t()
    assert size(program, ctypes.byref(count)) == 0
    text = ctypes.create_string_buffer(count.value)
    assert get(program, text) == 0
    return text.value


def compiled(code: str, options: tuple[str, ...], chip: str) -> str:
    """The assembly for a chip; a failure's message is the compiler's."""
    assert NVRTC is not None
    program = ctypes.c_void_p()
    made = NVRTC.nvrtcCreateProgram(ctypes.byref(program), code.encode(), None, 0, None, None)
    assert made == 0
    more = (*CUPY, f"-arch={chip}", *(f"-I{folder}" for folder in HEADERS))
    words = [word.encode() for word in (*options, *more)]
    given = (ctypes.c_char_p * len(words))(*words)
    status = NVRTC.nvrtcCompileProgram(program, len(words), given)
    log = text_of(NVRTC.nvrtcGetProgramLogSize, NVRTC.nvrtcGetProgramLog, program)
    assert (status, log) == (0, b""), log.decode()
    ptx = text_of(NVRTC.nvrtcGetPTXSize, NVRTC.nvrtcGetPTX, program).decode()
    NVRTC.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


@pytest.mark.every(16)
@needs_nvrtc
@pytest.mark.parametrize("source", SOURCES)
def test_sources_compile(source):
    """For the older of the chips that are tried; the next test is for the other."""
    for code, options in variants(source):
        ptx = compiled(code, options, "sm_80")
        names = [s.name for s in signatures(code, options)]
        assert names
        assert all(f".entry {name}(" in ptx for name in names)


@needs_nvrtc
@pytest.mark.parametrize("source", SOURCES)
def test_float32_stays_float32_and_packs_go_at_once(source):
    """Arithmetic on doubles is 64 times slower on many cards: none but sums and labels have any.

    CUDA's sine has some for angles above 100000.
    """
    code, options = variants(source)[0]
    parts = compiled(code, options, "sm_90").split(".entry ")[1:]
    wide = {part.split("(")[0] for part in parts if "mul.f64" in part or "fma.rn.f64" in part}
    sines = {"flat_sin", "flat_cos", "flat_tan"}
    assert wide <= {"sum_losses", "sum_picked", "squares", "total", "head_grad", *sines}
    packs = [part for part in parts if "packs" in part.split("(")[0]]
    assert len(packs) == {"flat": len(BY_PACKS), "cast": 1, "movement": 1}.get(source, 0)
    assert all(part.count("st.global") == part.count("st.global.v4") == 1 for part in packs)


@needs_nvrtc
def test_a_mistake_is_shown():
    with pytest.raises(AssertionError, match="undefined"):
        compiled('extern "C" __global__ void wrong() { undefined(); }', (), "sm_80")
