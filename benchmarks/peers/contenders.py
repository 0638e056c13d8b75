"""Contenders of the benchmark: their settings and processes.

Only one contender works at a time. The others are stopped (SIGSTOP), so none of their threads can
spin on a core.
"""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[2]
# Variables of our shell that would change BLAS, threads or memory.
DROPPED = (
    "BLIS_",
    "DNNL_",
    "GOMP_",
    "GOTO_",
    "KMP_",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_",
    "MXNET_",
    "NUMBA_",
    "NVPL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHONPATH",
    "XLA_",
)
MALLOC = {  # glibc keeps freed memory, so new buffers cause no page faults
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": str(1 << 30),
}
# MKL calls this before it uses its fast kernels; it is slow if the answer is no.
MKL_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


class LeftOut(Exception):
    """The reason why a contender cannot take part, in one line."""


class Contender(NamedTuple):
    """A contender; interpreter is the option that names its Python, or symgraph for ours."""

    title: str
    interpreter: str
    arguments: tuple[str, ...]  # of python -m; CONFIG is replaced
    settings: Mapping[str, str] = {}
    others: Mapping[str, str] = {}  # its title by the kind of network, if it is not only for LSTMs
    modes: bool = False  # whether it takes --forward and --bfloat16


KINDS = ("transformer", "seq2seq", "vgg")  # besides LSTMs
OURS, PYTORCH = "benchmarks.peers.symgraph_networks", "benchmarks.peers.torch_networks"


def _ours(title: str, *more: str, **settings: str) -> Contender:
    arguments = (OURS, "CONFIG", *more)
    return Contender(title, "symgraph", arguments, settings, dict.fromkeys(KINDS, title), True)


def _on_cpus(title: str, devices: int, threads: int) -> Contender:
    counts = "--devices", str(devices), "--threads", str(threads)
    return _ours(title, *counts, OPENBLAS_NUM_THREADS=str(threads))


def _on_gpu(title: str, contexts: int, *more: str, **settings: str) -> Contender:
    return _ours(title, *more, "--gpus", str(contexts), SYMGRAPH_SHARE_GPUS="1", **settings)


def _torch(title: str, *more: str, **others: str) -> Contender:
    return Contender(title, "torch", (PYTORCH, "CONFIG", *more), {}, others, True)


def _peer(title: str, interpreter: str, module: str) -> Contender:
    return Contender(title, interpreter, (f"benchmarks.peers.{module}", "CONFIG"))


CONTENDERS = {
    "symgraph-2": _on_cpus("symgraph, two devices", 2, 1),
    "symgraph-1x2": _on_cpus("symgraph, one device, two BLAS threads", 1, 2),
    "symgraph-1": _on_cpus("symgraph, one device, one BLAS thread", 1, 1),
    "torch": _torch(
        "PyTorch nn.LSTM",
        transformer="PyTorch, its attention",
        seq2seq="PyTorch nn.GRU, packed sequences",
        vgg="PyTorch",
    ),
    "torch-compile": _torch(
        "torch.compile, unrolled cells",
        "--compile",
        transformer="torch.compile, PyTorch's attention",
        vgg="torch.compile",
    ),
    "torch-pipeline": _peer("torch.distributed.pipelining, gloo", "torch", "torch_pipeline"),
    "jax": _peer("JAX lax.scan", "jax", "jax_lstm"),
    "mxnet": _peer("MXNet 1.9.1 group2ctx", "mxnet", "mxnet_lstm"),
    "chainer": _peer("Chainer 7.8 NStepLSTM", "chainer", "chainer_lstm"),
    "symgraph-gpu": _on_gpu("symgraph, one context", 1),
    "symgraph-gpu-2": _on_gpu("symgraph, two contexts on one card", 2),
    "symgraph-gpu-4": _on_gpu("symgraph, four contexts on one card", 4),
    "symgraph-gpu-2-even": _on_gpu("symgraph, two contexts, layers split evenly", 2, "--even"),
    "symgraph-gpu-4-even": _on_gpu("symgraph, four contexts, layers split evenly", 4, "--even"),
    "symgraph-gpu-calls": _on_gpu("symgraph without CUDA graphs", 1, SYMGRAPH_CUDA_GRAPHS="0"),
    "torch-gpu": _torch(
        "PyTorch nn.LSTM, cuDNN",
        "--cuda",
        transformer="PyTorch, its attention",
        seq2seq="PyTorch nn.GRU, cuDNN, packed sequences",
        vgg="PyTorch, cuDNN",
    ),
}
VARIANTS = {
    "malloc": "malloc tuned",
    "mkl": "MKL un-throttled",
    "avx512": "OpenBLAS told SkylakeX",
    "bf16": "bfloat16",
}
TORCH = ("torch", "torch-compile", "torch-pipeline")
DEFAULT = (
    "symgraph-2",
    "symgraph-1x2",
    "symgraph-1",
    *(name + variant for name in TORCH for variant in ("", "+malloc", "+malloc+mkl")),
    "jax",
    "jax+malloc",
    "mxnet",
    "chainer",
    "chainer+avx512",
)
DEFAULT_ON_GPU = (
    "symgraph-gpu",
    "symgraph-gpu-2",
    "symgraph-gpu-4",
    "symgraph-gpu-calls",
    "torch-gpu",
)


def parse(name: str) -> tuple[Contender, tuple[str, ...]]:
    """Parse a contender and its variants from a name such as `torch+malloc+mkl`.

    Raises ValueError for names that are unknown.
    """
    base, *variants = name.split("+")
    if base not in CONTENDERS or not set(variants) <= VARIANTS.keys():
        raise ValueError(
            f"contender {name!r} is unknown: it is one of {', '.join(CONTENDERS)}, with any of "
            f"{', '.join('+' + v for v in VARIANTS)} behind it"
        )
    return CONTENDERS[base], tuple(variants)


def title(name: str, kind: str = "lstm") -> str:
    """Return the title of a contender and its variants with a kind of network."""
    contender, variants = parse(name)
    own = contender.others.get(kind, contender.title)
    return ", ".join([own, *(VARIANTS[v] for v in variants)])


def environment(
    around: Mapping[str, str], contender: Contender, variants: Sequence[str], shim: Path | None
) -> dict[str, str]:
    """Return the environment of a contender: the shell's without settings, and its own."""
    made = {name: value for name, value in around.items() if not name.startswith(DROPPED)}
    made |= contender.settings
    if "malloc" in variants:
        made |= MALLOC
    if "mkl" in variants:
        made["LD_PRELOAD"] = str(shim)
    if "avx512" in variants:  # for an OpenBLAS that is older than the CPU and does not know it
        made["OPENBLAS_CORETYPE"] = "SkylakeX"
    return made


def make_shim(folder: Path) -> Path:
    """Compile the library that un-throttles MKL; LeftOut if not needed or without a compiler."""
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text():
        raise LeftOut("MKL is not throttled on this CPU")
    compiler = shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64":
        raise LeftOut("un-throttling MKL takes a C compiler (cc) on x86-64")
    path = folder / "mkl_shim.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=MKL_SHIM, text=True, check=True)
    return path


class Process:
    """A contender's process, stopped except during calls of its methods; a context manager."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._rest = b""
        with log.open("w") as stderr:
            self._child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=settings,
                process_group=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all its children; may be called again."""
        self._signal(signal.SIGKILL)
        self._child.wait()
        self._child.stdin.close()
        self._child.stdout.close()

    def wait(self, limit: float) -> None:
        """Wait until `ready` has an answer; LeftOut as in `ready`."""
        answer = json.dumps(self._answer(limit)).encode()
        self._rest = answer + b"\n" + self._rest

    def ready(self, limit: float) -> dict[str, Any]:
        """Wait until it is ready and return its description.

        LeftOut if it fails or takes too long.
        """
        found = self._answer(limit)
        self._signal(signal.SIGSTOP)
        return found

    def run(self, steps: int, limit: float, word: str = "run") -> dict[str, Any]:
        """Run some steps, or `trace` them, and return the answer; LeftOut as in `ready`."""
        self._signal(signal.SIGCONT)
        self._child.stdin.write(f"{word} {steps}\n".encode())
        self._child.stdin.flush()
        found = self._answer(limit)
        self._signal(signal.SIGSTOP)
        return found

    def _signal(self, number: int) -> None:
        """Send a signal to all its processes, because a contender may have started more."""
        if self._child.poll() is None or number == signal.SIGKILL:
            try:
                os.killpg(self._child.pid, number)
            except ProcessLookupError:
                return

    def _answer(self, limit: float) -> dict[str, Any]:
        """Return the next line of JSON; libraries may print other lines."""
        until = time.monotonic() + limit
        pipe = self._child.stdout
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                if line.startswith(b"{"):
                    return json.loads(line)
                continue
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise LeftOut(f"no answer within {limit:.0f} s")
            more = os.read(pipe.fileno(), 1 << 16)
            if not more:
                raise LeftOut(self._last_words())
            self._rest += more

    def _last_words(self) -> str:
        lines = self._log.read_text().strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._child.wait()}"
