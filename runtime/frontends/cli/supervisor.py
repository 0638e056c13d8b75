"""The supervisor: starts a training run as its child, and starts it again when it fails.

    python -m symgraph.run CONFIG --restarts 5
    python -m symgraph.run CONFIG --restarts 5 --launcher "mpiexec -n {ranks}"

It computes nothing. It learns how the run is from the exit status of its child (the launcher, or
the run itself), from connections that each process of the run keeps to it
(`runtime.training.supervised`), and from flight records, which name the device that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from runtime.frontends.cli.restarts import (
    Blame,
    DeviceChoice,
    blame,
    plan_overrides,
    read_records,
    taking_part,
)
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.flight import FOLDER
from runtime.training.supervised import LINE_BYTES, VARIABLE
from runtime.transports import launched_by_mpi
from symgraph.app.command_line import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    NO_FIT,
    OK,
    TERMINATED,
    UNREAD,
    say,
)
from symgraph.app.config import Config, RestartsConfig
from symgraph.core.errors import ConfigError
from symgraph.core.units import count_text, seconds_text

FINAL = (OK, BAD_INPUT, NO_FIT, INTERRUPTED, UNREAD, TERMINATED)  # not worth another attempt
REFUSED = (BAD_INPUT, NO_FIT)  # with fewer devices: the constraints or the memory need them all
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
LOST = {signal.SIGKILL, signal.SIGSTOP}  # what others do to a process; the rest are its own errors
LOOK_SECONDS = 0.1
START_SECONDS = 60.0  # at least, until a process is heard of
LAST_SECONDS = 0.5  # for the last words of ranks, once the connections of all of them have ended
END_SECONDS = 10.0  # from SIGTERM to SIGKILL for what an attempt leaves
KEPT_RECORDS = 10  # attempts whose flight records stay
PR_SET_PDEATHSIG = 1


@dataclass
class Link:
    """A connection to a process of the run."""

    socket: socket.socket
    unread: bytes = b""
    #: The ranks in that process; empty until it has named them.
    ranks: tuple[int, ...] = ()
    #: When it was last heard of.
    heard: float = field(default_factory=time.monotonic)


@dataclass
class Attempt:
    """One start of the run: what is known of it."""

    number: int
    devices: tuple[str, ...]
    began: float
    #: Seconds of `time.monotonic`; None: not yet.
    planned: float | None = None
    stepped: float | None = None
    #: The first sign of a failure: a connection that ended, or was silent.
    first_sign: float | None = None
    #: Steps done in all, and the step that it resumed from.
    step: int = 0
    resumed: int = 0
    #: Seconds of training.
    seconds: float = 0.0
    #: Why the supervisor ended it; "": it ended by itself.
    silent: str = ""
    status: int | None = None


def require_restarts(config: Config, options: argparse.Namespace) -> RestartsConfig | None:
    """Return how a run is to be restarted, from its options and its config; None: not at all.

    Raises ConfigError for what cannot be.
    """
    settings = config.restarts or RestartsConfig()
    if options.restarts is not None:
        settings = settings.model_copy(update={"count": options.restarts})
    if options.launcher is not None:
        settings = settings.model_copy(update={"launcher": options.launcher})
    if options.restarts is None and config.restarts is None:
        if options.launcher is not None:
            raise ConfigError("--launcher goes with --restarts; add that")
        return None
    if config.checkpoint is None:
        raise ConfigError(
            "restarts resume from checkpoints, but the config has none: add "
            "checkpoint: {directory: FOLDER, every: STEPS}"
        )
    if config.checkpoint.resume == "never":
        raise ConfigError("restarts resume from checkpoints: set checkpoint.resume to auto")
    if settings.hosts is not None and len(settings.hosts) != len(config.devices):
        raise ConfigError(
            f"restarts.hosts: {len(settings.hosts)} hosts for {len(config.devices)} devices; "
            "name the host of each device"
        )
    _launcher(settings, config, config.devices)
    return settings


def _launcher(settings: RestartsConfig, config: Config, devices: Sequence[str]) -> list[str]:
    """Return the words of the launcher for these devices; none without a launcher."""
    if settings.launcher is None:
        return []
    places = settings.hosts or (platform.node(),) * len(config.devices)
    host_of = dict(zip(config.devices, places, strict=True))
    hosts = ",".join(host_of[device] for device in devices)
    try:
        words = shlex.split(settings.launcher.format(ranks=len(devices), hosts=hosts))
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"launcher {settings.launcher!r}: {type(error).__name__} {error}; write it like "
            '"mpiexec -n {ranks}" or "mpiexec -n {ranks} -hosts {hosts}"'
        ) from None
    if "{ranks}" not in settings.launcher:
        raise ConfigError(
            f"launcher {settings.launcher!r} does not say how many ranks to start: write it like "
            '"mpiexec -n {ranks}"'
        )
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"launcher: there is no program {words[0] if words else ''!r}")
    return words


def _settings(config: Config, options: argparse.Namespace) -> RestartsConfig | None:
    return None if VARIABLE in os.environ else require_restarts(config, options)


def require_no_launcher(config: Config, options: argparse.Namespace) -> None:
    """Raise ConfigError if restarts are asked for in a process that a launcher has started."""
    if launched_by_mpi(os.environ) and _settings(config, options) is not None:
        raise ConfigError(
            "--restarts starts the launcher itself: run it without mpiexec, with "
            '--launcher "mpiexec -n {ranks}"'
        )


def supervise(config: Config, options: argparse.Namespace) -> int | None:
    """Run a config under a supervisor, and return the exit status; None: none is asked for."""
    settings = _settings(config, options)
    if settings is None:
        return None
    assert config.checkpoint is not None
    if config.checkpoint.every is None:
        say("warning: checkpoint.every is null, so a restart begins anew")

    def command(overrides: Sequence[str]) -> list[str]:
        words = [sys.executable, "-m", "symgraph.run", options.config, *options.overrides]
        words += [*overrides, "restarts=null"]
        for name in ("log", "tensorboard"):
            if getattr(options, name) is not None:
                words += [f"--{name}", getattr(options, name)]
        return words + [f"--{name}" for name in ("json", "traceback") if getattr(options, name)]

    supervisor = Supervisor(config, settings, command)
    status = supervisor.run(capture=options.json)
    text = b"".join(supervisor.output).decode(errors="replace")
    lines = text.rstrip("\n").split("\n") if text else []
    if status == OK and lines:
        summary = {**json.loads(lines[-1]), "restarts": supervisor.restarts}
        lines[-1] = json.dumps(summary)
    for line in lines:
        print(line)
    return status


class Supervisor:
    """Runs a config to its end, over as many attempts as the settings allow."""

    def __init__(
        self,
        config: Config,
        settings: RestartsConfig,
        command: Callable[[Sequence[str]], list[str]],
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            config: The config of the run.
            settings: How it is restarted.
            command: Returns the command line of an attempt with these overrides.
        """
        self.config, self.settings, self._command = config, settings, command
        assert config.checkpoint is not None
        self.folder = Path(config.checkpoint.directory, FOLDER)
        self.facts = _planned_before(Path(config.checkpoint.directory))
        self.restarts: list[dict[str, Any]] = []
        self.trained = 0.0  # seconds, by earlier attempts
        self.output: list[bytes] = []  # of the last attempt, if it is not passed on
        self._choice = DeviceChoice(config.devices)
        self._links: list[Link] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping: float | None = None  # when a signal asked for the end
        self._token = ""
        local = settings.launcher is None or len(set(settings.hosts or ())) <= 1
        self._address = "127.0.0.1" if local else socket.gethostname()
        self._server = socket.create_server(("127.0.0.1" if local else "", 0), backlog=64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)

    # -- attempts --------------------------------------------------------------------------------

    def run(self, capture: bool) -> int:
        """Run attempts until one ends for good; return its exit status.

        capture: whether to keep what attempts write to stdout in `output`.
        """
        for signum in HANDED_ON:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as under nohup
                signal.signal(signum, self._hand_on)
        signal.signal(signal.SIGQUIT, self._ask_for_records)
        devices, last = self.config.devices, None
        for number in range(1, self.settings.count + 2):
            attempt = self._attempt(number, devices, capture)
            status = attempt.status
            assert status is not None
            refused = status in REFUSED and devices != self.config.devices
            if (status in FINAL and not refused) or self._stopping is not None:
                return status
            found = self._reason(attempt)
            self.trained += attempt.seconds
            error = _error_of(attempt, found)
            if error is not None and error == last:
                say(f"error: no progress: step {attempt.step} failed twice with the same error")
                return FAILED
            last = error
            devices = self.config.devices if refused else self._next_devices(attempt, found)
            self._note(attempt, found, devices, number)
        say(f"error: the run failed {count_text(self.settings.count + 1, 'time')}; giving up")
        return FAILED

    def _attempt(self, number: int, devices: tuple[str, ...], capture: bool) -> Attempt:
        """Start the run, watch it until it has ended, and end what it leaves."""
        attempt = Attempt(number, devices, time.monotonic())
        self._put_records_away(number - 1)
        words = self._words(devices)
        self._token = secrets.token_hex(16)
        port = self._server.getsockname()[1]
        place = f"{self._address}:{port}:{number}:{self._token}"
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
        try:
            if self._stopping is not None:
                attempt.status = INTERRUPTED
                return attempt
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else None,
                env={**os.environ, VARIABLE: place},
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        except OSError as error:
            raise ConfigError(f"cannot start {words[0]}: {error.strerror}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.output = []
        try:
            self._watch(attempt, self._child)
        finally:
            self._end_all()
        return attempt

    def _words(self, devices: tuple[str, ...]) -> list[str]:
        """Return the command line of an attempt on these devices."""
        overrides = plan_overrides(self.config, devices, self.facts)
        limit = self.config.train.seconds
        if limit is not None and self.trained:
            overrides.append(f"train.seconds={max(limit - self.trained, 1e-3)}")
        return [*_launcher(self.settings, self.config, devices), *self._command(overrides)]

    def _next_devices(self, attempt: Attempt, found: Blame) -> tuple[str, ...]:
        devices = self._choice.next(found.device)
        try:
            return taking_part(self.config, devices, self.facts)
        except ConfigError as error:
            say(f"{error}; the next attempt takes all devices back")
            return self.config.devices

    # -- watching --------------------------------------------------------------------------------

    def _watch(self, attempt: Attempt, child: subprocess.Popen[bytes]) -> None:
        """Take in what processes say until the child has ended."""
        if child.stdout is not None:
            os.set_blocking(child.stdout.fileno(), False)
            self._selector.register(child.stdout, selectors.EVENT_READ)
        patience = max(START_SECONDS, self.config.timeout if self.settings.launcher else 0.0)
        while True:
            self._listen(attempt, child, LOOK_SECONDS)
            status = child.poll()
            if status is not None:
                while self._listen(attempt, child, 0.0):
                    pass
                attempt.status = 128 - status if status < 0 else status
                attempt.first_sign = attempt.first_sign or time.monotonic()
                break
            self._look_for_silence(attempt, patience)
            if attempt.silent or self._overdue():
                self._end_all()
                child.wait()
                attempt.status = FAILED if attempt.silent else TERMINATED
                break
        if child.stdout is not None:
            self._read(child.stdout)
            self._selector.unregister(child.stdout)
            child.stdout.close()

    def _listen(self, attempt: Attempt, child: subprocess.Popen[bytes], seconds: float) -> bool:
        """Take in what comes within some seconds; return whether anything came."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fileobj is self._server:
                self._welcome()
            elif isinstance(key.data, Link):
                self._hear(attempt, key.data)
            else:
                self._read(child.stdout)
        return any(isinstance(key.data, Link) for key, _ in ready)

    def _welcome(self) -> None:
        connection, _ = self._server.accept()
        connection.setblocking(False)
        link = Link(connection)
        self._links.append(link)
        self._selector.register(connection, selectors.EVENT_READ, link)

    def _drop(self, link: Link) -> None:
        self._links.remove(link)
        self._selector.unregister(link.socket)
        link.socket.close()

    def _hear(self, attempt: Attempt, link: Link) -> None:
        """Take in what has arrived on a connection."""
        try:
            data = link.socket.recv(65536)
        except OSError:
            data = b""
        link.heard = time.monotonic()
        *lines, link.unread = (link.unread + data).split(b"\n")
        if not data or len(link.unread) > LINE_BYTES:
            self._drop(link)
            if link.ranks:
                attempt.first_sign = attempt.first_sign or link.heard
            return
        for line in lines:
            try:
                self._take(attempt, link, json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):  # a stranger
                self._drop(link)
                return

    def _take(self, attempt: Attempt, link: Link, said: dict[str, Any]) -> None:
        if not link.ranks:
            if not secrets.compare_digest(said["token"], self._token):
                raise ValueError
            link.ranks = tuple(said["ranks"])
        if "plan" in said:
            self.facts = self.facts or said["plan"]
            attempt.planned = attempt.planned or link.heard
        if "resumed" in said:
            attempt.resumed = attempt.step = said["resumed"]
        if "step" in said and said["step"] > attempt.step:
            attempt.step, attempt.seconds = said["step"], said["seconds"]
            if attempt.stepped is None:
                attempt.stepped = link.heard
                self._say_resumed(attempt)

    def _look_for_silence(self, attempt: Attempt, patience: float) -> None:
        """Set `silent` if nothing has been heard for too long, of one process or of all."""
        now, bound = time.monotonic(), 2 * self.config.heartbeat
        known = [link for link in self._links if link.ranks]
        for link in known:
            if now - link.heard > bound:
                attempt.silent = f"rank {link.ranks[0]} was silent for {seconds_text(bound)}"
                attempt.first_sign = min(attempt.first_sign or now, link.heard)
                return
        if not known:
            since = attempt.first_sign or attempt.began
            if attempt.first_sign and now - since > LAST_SECONDS and read_records(self.folder):
                attempt.silent = "its processes have ended"  # what remains is the launcher
                return
            limit = bound if attempt.first_sign else patience
            if now - since > limit:
                attempt.silent = (
                    f"its processes have gone, but not its launcher, for {seconds_text(bound)}"
                    if attempt.first_sign
                    else f"no process was heard of for {seconds_text(limit)} (does the launcher "
                    f"hand {VARIABLE} on?)"
                )

    def _overdue(self) -> bool:
        """Return whether a run that was asked to end takes too long."""
        limit = self.config.timeout + START_SECONDS
        return self._stopping is not None and time.monotonic() - self._stopping > limit

    def _read(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        with contextlib.suppress(OSError):
            while data := os.read(stream.fileno(), 65536):
                self.output.append(data)

    # -- signals and ends ------------------------------------------------------------------------

    def _hand_on(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = self._stopping or time.monotonic()
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signum)

    def _ask_for_records(self, signum: int, frame: FrameType | None) -> None:
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.socket.send(b'{"quit": true}\n')

    def _end_all(self) -> None:
        """End every process of the attempt on this host, and forget its connections."""
        deadline = time.monotonic() + END_SECONDS
        signum = signal.SIGTERM
        while processes := _processes(self._token):
            if time.monotonic() > deadline:
                signum = signal.SIGKILL
            for process in processes:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signum)
                    os.kill(process, signal.SIGCONT)
            if self._child is not None:
                self._child.poll()
            time.sleep(LOOK_SECONDS)
        for link in list(self._links):
            self._drop(link)

    def _put_records_away(self, number: int) -> None:
        """Move the flight records of an attempt into a folder of its own."""
        files = [*self.folder.glob("rank-*.json")]
        if files:
            away = self.folder / f"attempt-{number}"
            shutil.rmtree(away, ignore_errors=True)
            away.mkdir()
            for file in files:
                os.replace(file, away / file.name)
            shutil.rmtree(self.folder / f"attempt-{number - KEPT_RECORDS}", ignore_errors=True)

    # -- what is said ----------------------------------------------------------------------------

    def _reason(self, attempt: Attempt) -> Blame:
        found = blame(read_records(self.folder))
        if found is not None:
            return found
        if attempt.silent:
            return Blame(attempt.silent, attempt.silent)
        status = attempt.status or 0
        if status > 128:
            with contextlib.suppress(ValueError):
                number = signal.Signals(status - 128)
                return Blame(f"ended by {number.name}", number.name, told=number not in LOST)
        return Blame(f"ended with status {status}", "", told=status == FAILED)

    def _note(self, attempt: Attempt, found: Blame, devices: tuple[str, ...], number: int) -> None:
        """Say that an attempt has failed, and what is next."""
        now = time.monotonic()
        noticed = now - (attempt.first_sign or now)
        self.restarts.append(
            {
                "reason": found.reason,
                "rank": found.rank if found.rank >= 0 else None,
                "device": found.device or None,
                "step": attempt.step,
                "devices": list(devices),
                "notice_seconds": noticed,
                "plan_seconds": None,
                "resume_seconds": None,
            }
        )
        if number > self.settings.count:
            return
        reason = " ".join(found.reason.split())
        say(
            f"restart {number} of {self.settings.count}: {reason} (after step {attempt.step}); "
            f"noticed in {seconds_text(noticed)}; next on {', '.join(devices)}"
        )

    def _say_resumed(self, attempt: Attempt) -> None:
        """Say, after the first step, how long the restart took."""
        if not self.restarts or attempt.stepped is None:
            return
        planned = attempt.planned or attempt.began
        plan, resume = planned - attempt.began, attempt.stepped - planned
        record = self.restarts[-1]
        record["plan_seconds"], record["resume_seconds"] = plan, resume
        record["resumed"] = attempt.resumed
        say(
            f"restart {attempt.number - 1}: planned in {seconds_text(plan)}, resumed from step "
            f"{attempt.resumed} in {seconds_text(resume)}"
        )


def _planned_before(folder: Path) -> dict[str, Any] | None:
    """Return how the run was planned that a folder has checkpoints of; None: there are none."""
    manifests = [entry.manifest for entry in CheckpointFolder(folder).entries()]
    return next((m.facts.get("plan") for m in manifests if m is not None), None)


def _error_of(attempt: Attempt, found: Blame) -> tuple[int, str] | None:
    """Return what two attempts have in common if they fail alike; None: it may be chance."""
    return (attempt.step, found.error) if found.told else None


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a child does first: from then on SIGTERM comes to it when its parent ends."""
    library = ctypes.CDLL(None)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(TERMINATED)

    return prepare


def _processes(token: str) -> list[int]:
    """List the processes on this host whose environment has the token of an attempt."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if token.encode() in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
    return found
