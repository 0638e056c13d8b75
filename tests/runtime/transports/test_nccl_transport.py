"""Tests of values between cards, by NCCL and by MPI.

Tests/fakes/fake_nccl.py stands in for cards.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runtime.backends.device.settings import CUDA_AWARE_MPI
from runtime.transports import ThreadCluster
from runtime.transports.mpi.staging import cuda_aware
from symgraph.core.errors import ConfigError
from tests.fakes import fake_nccl
from tests.fakes.fake_cupy import fake_cupy
from tests.helpers.small_lm import losses, write_config
from tests.mpi.cases import gathered
from tests.mpi.launch import Ended, launch, needs_mpi
from tests.runtime.backends.cuda.emulation import MISSING, compiler
from tests.runtime.transports.nccl_runs import chosen

PROGRAM = "tests.runtime.transports.nccl_ranks"
needs_compiler = pytest.mark.skipif(compiler() is None, reason=MISSING)
TRAIN = "optimizer: adam, learning_rate: 0.02, clip_global_norm: 1.0, steps: 2, seed: 1"
REPLICAS = (
    "devices=[gpu(0), gpu(1)]",
    "partition.data_axis=2",
    "pipeline.micro_batches=2",
    "group2ctx={embed: gpu(0), layer0: gpu(0), layer1: gpu(0), decode: gpu(0)}",
)
MIXED = (
    "devices=[gpu(0), gpu(1), cpu(0)]",
    "group2ctx={embed: gpu(0), layer0: cpu(0), layer1: gpu(1), decode: [gpu(0), cpu(0), gpu(1)]}",
)


def mpi(test):
    for mark in needs_mpi:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def _one_blas_thread():
    """As the ranks have: the bits of a product may depend on it."""
    with threadpool_limits(1, "blas"):
        yield


@mpi
def test_nccl_keeps_the_contract():
    ended = launch(3, PROGRAM, "contract")
    assert ended.lines("contract") == ["contract kept"] * 3, ended


@mpi
def test_messages_of_cards_by_mpi():
    """As they are, and by way of the host."""
    ended = launch(2, PROGRAM, "by-mpi")
    assert ended.lines("messages") == ["messages as they are"] * 2 + ["messages staged"] * 2, ended


@mpi
@needs_compiler
@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
def test_same_bits_as_threads(tmp_path):
    """Messages and all collectives, whole steps and training, in segments and in buckets."""
    ended = launch(2, PROGRAM, "steps", tmp_path)
    assert ended.status == 0, ended
    found = [dict(np.load(tmp_path / f"rank{rank}.npz")) for rank in range(2)]
    with fake_cupy(cards=2):
        for name, run in chosen(2).items():
            with ThreadCluster(2) as cluster:
                want = gathered(run(cluster))
            for key, array in want.items():
                (got,) = [
                    arrays[f"{name}: {key}"] for arrays in found if f"{name}: {key}" in arrays
                ]
                assert got.tobytes() == array.tobytes(), f"{name}: {key}"


def trained(ranks: int, *arguments: str | Path) -> float:
    """The loss at the end of the command line's run."""
    ended = launch(ranks, PROGRAM, "command", *arguments, "transport=nccl", "--json")
    assert ended.status == 0, ended
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert summary["transport"] == "nccl"
    return summary["loss"]


@mpi
@needs_compiler
@pytest.mark.parametrize("devices", [REPLICAS, MIXED], ids=["replicas", "a host among cards"])
def test_a_config_trains_as_on_threads(tmp_path, devices):
    path = write_config(tmp_path, TRAIN)
    with fake_cupy(cards=2):
        want = losses(path, *devices)
    assert trained(2 + (devices is MIXED), path, *devices) == want


# -- refusals --------------------------------------------------------------------------------------


def said(ended: Ended) -> str:
    """What both ranks say alike."""
    first, second = ended.lines("Error: ")
    assert first == second
    return first


@mpi
def test_what_cannot_be_joined_is_one_clear_error(monkeypatch):
    assert said(launch(2, PROGRAM, "no-nccl", "gpu(0)", "gpu(1)")) == (
        "ConfigError: transport 'nccl', rank 0: CuPy finds no NCCL: pip install nvidia-nccl-cu12, "
        "or use transport 'mpi', which goes by way of the host"
    )
    assert said(launch(2, PROGRAM, "refused", "cpu(0)", "cpu(1)")) == (
        "ConfigError: transport 'nccl' joins cards, but all devices are the host's (cpu(0), "
        "cpu(1)); use transport 'mpi'"
    )
    monkeypatch.setenv("SYMGRAPH_SHARE_GPUS", "1")
    text = said(launch(2, PROGRAM, "refused", "gpu(0)", "gpu(2)"))
    assert text.startswith(
        "ConfigError: transport 'nccl': gpu(0) of rank 0 and gpu(2) of rank 1 "
        "are one card (0000:00:00.0 of "
    )


@mpi
def test_wrong_number_of_processes():
    text = said(launch(2, PROGRAM, "refused", "gpu(0)", "gpu(1)", "cpu(0)"))
    assert text == (
        "ConfigError: transport 'nccl': the run has 3 ranks, but 2 processes were started; use "
        "mpiexec -n 3"
    )


@mpi
def test_an_array_of_the_host_between_cards():
    """It would be taken for a card's, or for another message."""
    ended = launch(2, PROGRAM, "host-array")
    assert ended.status == 1
    assert len(ended.lines("^(send|recv) 0 -> 1: both ranks have cards, but the array is")) >= 1


@mpi
def test_a_card_does_not_wait_for_a_lost_rank():
    """A rank that dies in the middle of a message left the other's card at work for ever."""
    ended = launch(2, PROGRAM, "lost")
    assert ended.lines("rank 0 stopped") == [
        "rank 0 stopped while waiting for the end (F0.0): rank 1 failed: its process was lost (it "
        "ended without a goodbye)"
    ], ended


@mpi
def test_an_error_of_the_network_while_all_ranks_live():
    """Both cards, and whoever waited for them, waited for ever: NCCL says it to those who ask."""
    ended = launch(2, PROGRAM, "network")
    assert ended.status == 1, ended
    assert ended.lines("stopped") == [
        f"PeerFailed: rank {rank} stopped while waiting for the end (F{rank}.0): rank 1 failed at "
        "F1.0: NCCL says NCCL_ERROR_REMOTE_ERROR: there was a network error"
        for rank in range(2)
    ], ended


# -- what CuPy and MPI say -------------------------------------------------------------------------

LOOK = """
import json, sys, warnings
warnings.simplefilter("ignore")
import cupy
from cupy.cuda import nccl
numbers = json.loads(sys.argv[1])
print(json.dumps({
    "available": nccl.available,
    "differ": nccl.available and [n for n, v in numbers.items() if getattr(nccl, n) != v],
    "calls": nccl.available and {n: getattr(nccl.NcclCommunicator, n).__doc__
                                 for n in sys.argv[2].split()},
    "missing": [n for n in ("deviceGetPCIBusId", "getDevice") if not hasattr(cupy.cuda.runtime, n)],
}))
"""
CALLS = {
    "send": "sendbuf, size_t count, int datatype, int peer, intptr_t stream",
    "recv": "recvbuf, size_t count, int datatype, int peer, intptr_t stream",
    "broadcast": "sendbuff, intptr_t recvbuff, size_t count, int datatype, int root, "
    "intptr_t stream",
    "allGather": "sendbuf, intptr_t recvbuf, size_t count, int datatype, intptr_t stream",
    "allReduce": "sendbuf, intptr_t recvbuf, size_t count, int datatype, int op, intptr_t stream",
    "abort": "self",
    "destroy": "self",
    "check_async_error": "self",
}


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
def test_the_stand_in_has_the_calls_of_cupy():
    """In a process of its own: CuPy warns of a machine without a driver."""
    numbers = {**fake_nccl.NUMBERS, "NCCL_SUM": fake_nccl.NCCL_SUM}
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(numbers), " ".join(CALLS)],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["missing"] == []
    if not told["available"]:
        pytest.skip("CuPy finds no NCCL")
    assert told["differ"] == []
    for name, arguments in CALLS.items():
        assert arguments in told["calls"][name]


def test_cuda_aware_mpi_is_asked_or_told():
    library = np._core._multiarray_umath.__file__  # no MPI: it cannot be asked
    assert not cuda_aware(library, {})
    assert cuda_aware(library, {"OMPI_MCA_opal_cuda_support": "true"})
    assert cuda_aware(library, {"MPICH_GPU_SUPPORT": "1"})
    assert not cuda_aware(library, {"MPICH_GPU_SUPPORT": "1", CUDA_AWARE_MPI: "0"})
    assert cuda_aware(library, {CUDA_AWARE_MPI: "1"})
    with pytest.raises(
        ConfigError, match=f"{CUDA_AWARE_MPI}='yes': say 1 if MPI takes memory of GPUs"
    ):
        cuda_aware(library, {CUDA_AWARE_MPI: "yes"})
