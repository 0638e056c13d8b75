"""A training run seen from outside: its processes, its shared memory, its steps, its weights.

For benchmarks that kill runs (`kills.py`) or watch them for long (`soak.py`). All processes of a
run, orphans too, are found by a mark in their environment. Where this process may mount, the run
has a /dev/shm of its own, so that what is left there is its own; elsewhere what counts is each
file of MPI's that no process maps and that was not there before.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import yaml
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"
MARK = "SYMGRAPH_BENCHMARK_RUN"
SHM = Path("/dev/shm")
LOOK_SECONDS = 0.1  # from one look for processes to the next, which takes a while itself
OWN_SHM = 'mount --bind "$0" /dev/shm && exec "$@"'  # in a mount namespace of its own
GROUPS = ("embed", "layer0", "layer1", "decode")
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "1f1b", "gpipe")  # by number of devices


class Process(NamedTuple):
    """A process of a run."""

    pid: int
    #: "rank 1", "guard 1", "deputy 1" (a guard's own), "mpiexec", "proxy", "supervisor", or
    #: "process" for others.
    role: str
    #: As /proc says it: R, S, D, T (stopped) ...
    state: str
    command: str

    def __str__(self) -> str:
        return f"{self.pid} {self.role} ({self.state}) {self.command}"


def processes(mark: str) -> list[Process]:
    """The living processes whose environment has the mark, the oldest first."""
    needle = f"{MARK}={mark}".encode()
    found: list[Process] = []
    guards = set()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):  # it has ended
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if needle not in environ:
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state in "ZX":
                continue
            role = _role(words, environ)
            if role.startswith("guard"):
                role = role.replace("guard", "deputy") if int(parent) in guards else role
                guards.add(pid)
            found.append(Process(pid, role, state, " ".join(words)[:200]))
    return found


def _role(words: Sequence[str], environ: Iterable[bytes]) -> str:
    name = Path(words[0]).name
    if name.startswith("mpiexec"):
        return "mpiexec"
    if name.startswith("hydra"):
        return "proxy"
    if "--restarts" in words:
        return "supervisor"
    number = next((v.partition(b"=")[2] for v in environ if v.startswith(b"PMI_RANK=")), None)
    if number is None:
        return "process"
    return f"{'guard' if any(w.endswith('guard.py') for w in words) else 'rank'} {int(number)}"


def write_config(folder: Path, devices: int, steps: int, every: int, **more: object) -> Path:
    """Write the config of a small language model with dropout on some devices; its path.

    The weights at the end do not depend on the number of devices. Every `every` steps there is a
    checkpoint; further sections: `more`.
    """
    text = folder / "text.txt"
    if not text.exists():
        rng = random.Random(1)
        lines = [" ".join(f"w{rng.randrange(17)}" for _ in range(30)) for _ in range(500)]
        text.write_text("\n".join(lines), encoding="utf-8")
    places = [group * devices // len(GROUPS) for group in range(len(GROUPS))]
    config = {
        "model": "examples.lstm_lm:build",
        "args": {"layers": 2, "hidden": 96, "embed": 96, "dropout": 0.1},
        "data": {
            "kind": "text",
            "path": str(text),
            "batch_size": 16,
            "sequence_length": 10,
            "vocab": 20,
        },
        "devices": [f"cpu({i})" for i in range(devices)],
        "group2ctx": {g: f"cpu({place})" for g, place in zip(GROUPS, places, strict=True)},
        "pipeline": {"schedule": SCHEDULES[devices], "micro_batches": 4},
        "train": {
            "optimizer": "adam",
            "learning_rate": 0.01,
            "clip_global_norm": 1.0,
            "steps": steps,
        },
        "checkpoint": {"directory": str(folder / "saved"), "every": every},
        **more,
    }
    path = folder / f"on-{devices}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


class Run:
    """A started run; `words` are the command line behind the launcher's."""

    def __init__(self, folder: Path, name: str, words: Sequence[str], ranks: int | None) -> None:
        """Start it: over MPI on `ranks` ranks, or, for None, as one process."""
        self.log = folder / f"{name}.log"
        self.output = folder / f"{name}.out"
        self.mark = uuid4().hex
        self._text, self._figures = b"", []
        self._shm = folder / f"{name}.shm"
        self._shm.mkdir()
        self._before = set(_segments(SHM))
        command = [sys.executable, "-m", "symgraph.run", *words, "--log", str(self.log)]
        if ranks is not None:
            command = [str(MPIEXEC), "-n", str(ranks), *command]
        if own_shm():
            command = ["unshare", "--mount", "sh", "-c", OWN_SHM, str(self._shm), *command]
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        with self.output.open("wb") as output:
            self.start = time.monotonic()
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    **threads,
                    MARK: self.mark,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONFAULTHANDLER": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs, and after a hang."""
        return self.process.poll()

    @property
    def said(self) -> str:
        """What it wrote, to stdout and stderr."""
        return self.output.read_text(errors="replace")

    def figures(self) -> list[dict[str, float]]:
        """The figures of the steps done so far, as its log has them."""
        try:
            text = self.log.read_bytes()
        except FileNotFoundError:
            return []
        if text == self._text:
            return self._figures
        lines = text.splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.endswith(b"\n")]
        self._text = text
        self._figures = [entry for entry in entries if "tokens" in entry]
        return self._figures

    def steps(self) -> list[int]:
        """The steps done so far; those that were done again come again."""
        return [int(entry["step"]) for entry in self.figures()]

    def has_done(self, step: int, seconds: float) -> bool:
        """Wait until a step is done; False if the run ends before, or after so many seconds."""
        return self._comes(lambda: max(self.steps(), default=0) >= step, seconds)

    def has_logged(self, count: int, seconds: float) -> bool:
        """Wait as `has_done` does until so many steps are done, again or not."""
        return self._comes(lambda: len(self.steps()) >= count, seconds)

    def _comes(self, event: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if event():
                return True
            if self.process.poll() is not None:
                return event()
            time.sleep(0.002)
        return False

    def processes(self) -> list[Process]:
        """Its living processes."""
        self.process.poll()
        return processes(self.mark)

    def left(self, seconds: float, spare: Sequence[str] = ()) -> list[Process]:
        """Wait until all processes have ended; those still there after so many seconds.

        spare: roles not to wait for.
        """
        end = time.monotonic() + seconds
        while True:
            found = [p for p in self.processes() if p.role not in spare]
            if not found:  # one that is between two programs has no environment for a moment
                time.sleep(0.01)
                found = [p for p in self.processes() if p.role not in spare]
            if not found and not spare:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(1.0)
            if not found or time.monotonic() > end:
                return found
            time.sleep(LOOK_SECONDS)

    def shared_memory_left(self) -> list[str]:
        """Files of shared memory that it has left behind."""
        if own_shm():
            return sorted(path.name for path in self._shm.iterdir())
        left = set(_segments(SHM)) - self._before
        return sorted(left - _mapped()) if left else []

    def end(self) -> None:
        """Kill what is left of it, after each Python process has written where it is."""
        for how in (signal.SIGCONT, signal.SIGABRT, signal.SIGKILL):
            for process in self.processes():
                if how != signal.SIGABRT or process.role.startswith(("rank", "process")):
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, how)
            time.sleep(0.5 if how == signal.SIGABRT else 0.0)
        self.process.wait()


@cache
def own_shm() -> bool:
    """Whether a run can have a /dev/shm of its own here."""
    command = ["unshare", "--mount", "sh", "-c", OWN_SHM, "/tmp", "true"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def _segments(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("mpich_shm_*")]


def _mapped() -> set[str]:
    """The files of /dev/shm that some process maps."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            for line in maps.read_text().splitlines():
                if str(SHM) in line:
                    found.add(Path(line.split()[5]).name)
    return found


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, by step."""
    return sorted(path.parent for path in folder.glob("step-*/checkpoint.json"))


def digest(checkpoint: Path) -> str:
    """The digest of all tensors of a checkpoint by name, whichever files they are in."""
    tensors = {}
    for file in checkpoint.glob("*.safetensors"):
        tensors |= load_file(file)
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
