"""Random kills of training runs: does everything end, is nothing left, are the weights right?

    python -m benchmarks.kills [--cases 1000] [--seed 1] [--jobs 1] [--only CASE ...]
    python -m benchmarks.kills --restarts 100 [--seed 1]

A case is a small training run on 2 to 4 ranks (or threads) with checkpoints and evaluations, and
one signal: KILL, TERM, INT or STOP for a rank, its guard, mpiexec, MPICH's proxy, the supervisor of
a run with --restarts, or all processes, during the start, a step, a checkpoint, an evaluation or
the end. Then all processes must end by themselves, and leave no shared memory. The run is resumed,
mostly on another number of devices; its last weights must be those of an undisturbed run, to the
bit, and it may have lost no checkpoint.

A stopped process is never continued, with two exceptions: a stopped mpiexec, proxy or supervisor is
once the ranks have ended, since nobody else can end it; and a stopped run of threads, which is one
process, is killed. A case that fails leaves its folder, and prints how to repeat it alone. What is
drawn depends on seed and case alone, but when a signal arrives also on the machine.

--restarts kills ranks of one run on 3 devices under a supervisor, so many times, at random moments.
Every step must be in the log once, with the loss of the undisturbed run, and the last weights must
be that run's; the recovery is the time from a kill to the next step that is done.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from benchmarks.runs import MPIEXEC, Process, Run, checkpoints, digest, write_config

STEPS, SAVING, EVALUATING = 60, 5, 8  # all steps; steps from checkpoint, evaluation to the next
HEARTBEAT, TIMEOUT = 3.0, 15.0  # seconds, of the runs
PATIENCE = 150.0  # seconds until a run that is still there counts as hanging
LAST = 300  # steps of a supervised run after its last kill: a step takes 5 ms
FURTHER = 40  # steps of a supervised run from kill to kill, on average
SIGNALS = ("KILL", "TERM", "INT", "STOP")
MOMENTS = {  # share of the cases, seconds after the step in question
    "start": (25, 2.5),
    "step": (25, 0.02),
    "checkpoint": (20, 0.03),
    "evaluation": (10, 0.03),
    "end": (20, 0.5),
}
TARGETS = {  # share of the cases over MPI
    "rank": 35,
    "guard": 10,
    "deputy": 5,
    "mpiexec": 15,
    "proxy": 12,
    "supervisor": 10,
    "all": 13,
}
OUTSIDE = ("mpiexec", "proxy", "supervisor", "process")  # nothing of ours can end them if stopped
PROBLEMS = ("hang", "process left", "shared memory left", "wrong bits", "lost work", "no resume")


@dataclass(frozen=True)
class Case:
    """What is done to one run."""

    number: int
    #: Whether its ranks are processes of MPI, else threads of one.
    mpi: bool
    devices: int
    signal: str
    #: "rank 1", "guard 0", "deputy 0", "all", "process" for threads, or one of OUTSIDE.
    target: str
    moment: str
    #: The step after which the signal is sent, and how many seconds after it; 0: the start.
    step: int
    delay: float
    #: Devices of the run that resumes, and whether they are ranks of MPI.
    then: tuple[int, bool]

    def __str__(self) -> str:
        ways = ("threads", "ranks")
        return (
            f"{self.devices} {ways[self.mpi]}, {self.signal} of {self.target} {self.delay:.3f} s "
            f"after step {self.step} ({self.moment}), then {self.then[0]} {ways[self.then[1]]}"
        )


def draw(seed: int, number: int, ranks: Sequence[int]) -> Case:
    """Draw a case; it depends on nothing else."""
    rng = random.Random(f"{seed} {number}")
    mpi, devices = rng.random() < 0.9, rng.choice(ranks)
    target, how = "process", rng.choice(SIGNALS)
    if mpi:
        (target,) = rng.choices([*TARGETS], [*TARGETS.values()])
        if target in ("rank", "guard", "deputy"):
            target = f"{target} {rng.randrange(devices)}"
        elif target == "all":  # as Slurm and a terminal do
            how = rng.choice(["TERM", "INT"])
    (moment,) = rng.choices([*MOMENTS], [share for share, _ in MOMENTS.values()])
    step = {
        "start": 0,
        "step": rng.randrange(1, STEPS),
        "checkpoint": rng.randrange(SAVING, STEPS, SAVING),
        "evaluation": rng.randrange(EVALUATING, STEPS, EVALUATING),
        "end": STEPS,
    }[moment]
    delay = rng.uniform(0.0, MOMENTS[moment][1])
    then = rng.choice([1, *ranks]), rng.random() < 0.15
    return Case(number, mpi, devices, how, target, moment, step, delay, then)


@dataclass
class Outcome:
    """What became of a case; without problems, all is well."""

    case: Case
    #: Whether the signal found its target; else the run had ended.
    struck: bool = False
    #: Seconds from the signal to the end of the last process.
    ended: float = 0.0
    #: Seconds from the start of the resuming run to its first step.
    recovery: float = 0.0
    #: One of PROBLEMS, and what there was.
    problems: list[tuple[str, str]] = field(default_factory=list)


def victims(target: str, found: Sequence[Process]) -> list[Process]:
    """The processes to signal; while the target does not exist, the last one that was started."""
    if target == "all":
        return [*found]
    # A rank that has just forked, and its guard-to-be, look alike: the child is the rank.
    return [*([p for p in found if p.role == target] or found)[-1:]]


def strike(case: Case, run: Run) -> list[Process]:
    """Send a case's signal at its moment; the processes that it was sent to."""
    if case.step == 0:
        time.sleep(case.delay)
        found = victims(case.target, run.processes())
    else:
        run.has_done(1, PATIENCE)
        found = victims(case.target, run.processes())
        run.has_done(case.step, PATIENCE)
        time.sleep(case.delay)
    sent = []
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.Signals[f"SIG{case.signal}"])
            sent.append(process)
    return sent


def end_of(case: Case, run: Run, sent: Sequence[Process]) -> list[Process]:
    """Wait until a run has ended; the processes that do not."""
    stopped = {p.role for p in sent} if case.signal == "STOP" else set()
    if not stopped & {*OUTSIDE}:
        return run.left(PATIENCE)
    left = run.left(PATIENCE, spare=OUTSIDE)
    for process in sent:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL if process.role == "process" else signal.SIGCONT)
    return left or run.left(PATIENCE)


def try_case(case: Case, folder: Path, undisturbed: str) -> Outcome:
    """Do what a case says, in an empty folder; undisturbed: the digest of the right weights."""
    result = Outcome(case)
    words = [str(config(folder, case.devices))]
    if case.target == "supervisor":
        first = Run(folder, "first", supervised(words, restarts=1), None)
    else:
        first = Run(folder, "first", words, case.devices if case.mpi else None)
    sent = strike(case, first)
    result.struck = bool(sent)
    begun = time.monotonic()
    left = end_of(case, first, sent)
    result.ended = time.monotonic() - begun
    if left:
        kind = "hang" if first.status is None else "process left"
        result.problems.append((kind, "; ".join(map(str, left))))
        first.end()
    elif segments := first.shared_memory_left():
        result.problems.append(("shared memory left", ", ".join(segments)))
    saved, steps = checkpoints(folder / "saved"), first.steps()
    newest = int(saved[-1].name.removeprefix("step-")) if saved else 0
    # A step is logged before its checkpoint begins, and the one before may not be written yet.
    due = max(0, (max(steps, default=0) - 1) // SAVING - 1) * SAVING
    if newest < due or (first.status == 0 and newest < STEPS):
        words = f"status {first.status}, {max(steps, default=0)} steps, checkpoint of {newest}"
        result.problems.append(("lost work", words))
    resume(result, folder, newest, undisturbed)
    return result


def resume(result: Outcome, folder: Path, newest: int, undisturbed: str) -> None:
    """Resume the run of a case from its newest checkpoint, and look at the weights."""
    devices, mpi = result.case.then
    run = Run(folder, "second", [str(config(folder, devices))], devices if mpi else None)
    if newest < STEPS and run.has_done(newest + 1, PATIENCE):
        result.recovery = time.monotonic() - run.start
    if run.left(PATIENCE):
        run.end()
    steps, saved = run.steps(), checkpoints(folder / "saved")
    if run.status != 0 or not saved or steps != [*range(newest + 1, STEPS + 1)]:
        words = f"status {run.status}, steps {steps[:1]} to {steps[-1:]} after {newest}"
        result.problems.append(("no resume", words))
    elif digest(saved[-1]) != undisturbed:
        result.problems.append(("wrong bits", f"in {saved[-1]}"))
    elif rubbish := [p.name for p in (folder / "saved").glob("*partial*")]:
        result.problems.append(("no resume", f"left {', '.join(rubbish)}"))


def supervised(words: Sequence[str], restarts: int) -> list[str]:
    """The command line of a run over MPI under a supervisor."""
    return [*words, "--restarts", str(restarts), "--launcher", f"{MPIEXEC} -n {{ranks}}"]


def config(folder: Path, devices: int, steps: int = STEPS) -> Path:
    """The config of the runs, on some devices."""
    return write_config(
        folder,
        devices,
        steps,
        SAVING,
        evaluate={"every": EVALUATING},
        timeout=TIMEOUT,
        heartbeat=HEARTBEAT,
    )


def undisturbed_run(steps: int = STEPS) -> tuple[str, dict[float, float]]:
    """The digest of the weights that every run must end with, and the loss of each step."""
    folder = Path(mkdtemp(prefix="kills-"))
    run = Run(folder, "undisturbed", [str(config(folder, 2, steps))], None)
    if run.left(PATIENCE) or run.status != 0:
        run.end()
        sys.exit(f"a run that nothing disturbs fails:\n{run.said}")
    found = digest(checkpoints(folder / "saved")[-1])
    losses = {figures["step"]: figures["loss"] for figures in run.figures()}
    shutil.rmtree(folder)
    return found, losses


def kill_runs(cases: Iterable[Case], jobs: int, again: str = "") -> list[Outcome]:
    """Try cases, `jobs` at a time; again: the command line that repeats one, with its number."""
    undisturbed, _ = undisturbed_run()

    def attempt(case: Case) -> Outcome:
        folder = Path(mkdtemp(prefix=f"kills-{case.number}-"))
        result = try_case(case, folder, undisturbed)
        if result.problems:
            lines = [f"case {case.number}: {case}", f"  {folder}, {again}{case.number}"]
            print("\n".join([*lines, *(f"  {k}: {words}" for k, words in result.problems)]))
        else:
            shutil.rmtree(folder)
            print(f"case {case.number}: {case}: ended in {result.ended:.1f} s")
        sys.stdout.flush()
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(attempt, cases))


def table(results: Sequence[Outcome]) -> str:
    """The numbers of cases and problems by target, with the slowest of each."""
    heads = ["target", "cases", "struck", *PROBLEMS, "slowest end", "slowest recovery"]
    rows = []
    by_target: dict[str, list[Outcome]] = {}
    for result in results:
        by_target.setdefault(result.case.target.split()[0], []).append(result)
    for target, some in [*sorted(by_target.items()), ("together", [*results])]:
        count = Counter(kind for result in some for kind, _ in result.problems)
        rows.append(
            [
                target,
                str(len(some)),
                str(sum(result.struck for result in some)),
                *(str(count[kind]) for kind in PROBLEMS),
                f"{max(result.ended for result in some):.1f} s",
                f"{max(result.recovery for result in some):.1f} s",
            ]
        )
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    )


@dataclass
class Endurance:
    """What became of one supervised run under many kills; without problems, all is well."""

    #: Seconds from each kill to the next step that was done.
    recoveries: list[float] = field(default_factory=list)
    #: Steps that were done, in all attempts together.
    steps: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        sound = self.recoveries or [0.0]
        return (
            f"{len(self.recoveries)} kills in {self.steps} steps; "
            f"recovery median {median(sound):.1f} s, slowest {max(sound):.1f} s"
        )


def endure(kills: int, seed: int, folder: Path, devices: int = 3) -> Endurance:
    """Kill ranks of one supervised run, at random moments; in an empty folder.

    One kill in five comes while an attempt starts, but never two in a row: without any progress in
    between, a supervisor gives up, as it should.
    """
    rng = random.Random(seed)
    result, steps = Endurance(), kills * FURTHER + LAST
    weights, losses = undisturbed_run(steps)
    words = [str(config(folder, devices, steps))]
    run = Run(folder, "endured", supervised(words, restarts=2 * kills), None)
    run.has_done(1, PATIENCE)
    early = True
    while len(result.recoveries) < kills and run.status is None:
        early = not early and rng.random() < 0.2
        if early:
            time.sleep(rng.uniform(0.0, 2.0))
        else:
            done = len(run.steps())
            room = (steps - LAST - done) // (kills - len(result.recoveries))  # per kill
            run.has_logged(done + rng.randrange(1, max(2, min(2 * FURTHER, room))), PATIENCE)
            time.sleep(rng.uniform(0.0, 0.01))
        ranks = [p for p in run.processes() if p.role.startswith("rank")]
        if not ranks:
            early = True
            continue
        begun = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(rng.choice(ranks).pid, signal.SIGKILL)
        time.sleep(0.2)  # a step that was nearly done
        if not run.has_logged(len(run.steps()) + 1, PATIENCE):
            break
        result.recoveries.append(time.monotonic() - begun)
    if len(result.recoveries) < kills:
        result.problems.append(f"ended after {len(result.recoveries)} of {kills} kills")
    if left := run.left(PATIENCE):
        result.problems.append(f"hang: {'; '.join(map(str, left))}")
        run.end()
    done = [(figures["step"], figures["loss"]) for figures in run.figures()]
    result.steps = len(done)
    saved = checkpoints(folder / "saved")
    if run.status != 0 or [step for step, _ in done] != [*range(1, steps + 1)]:
        result.problems.append(f"status {run.status}, {result.steps} of {steps} steps")
    elif digest(saved[-1]) != weights:
        result.problems.append("wrong bits in the last weights")
    if wrong := sorted({step for step, loss in done if losses[step] != loss}):
        result.problems.append(f"other data, or wrong bits, in steps {wrong}")
    if segments := run.shared_memory_left():
        result.problems.append(f"shared memory left: {', '.join(segments)}")
    return result


def kill_one_run(kills: int, seed: int) -> bool:
    """Do `endure`, and print what came of it; return whether all is well."""
    folder = Path(mkdtemp(prefix="kills-"))
    result = endure(kills, seed, folder)
    print(result)
    for problem in result.problems:
        print(f"  {problem}")
    if result.problems:
        print(f"  {folder}, python -m benchmarks.kills --restarts {kills} --seed {seed}")
    else:
        shutil.rmtree(folder)
    return not result.problems


def main() -> None:
    """Try cases; print a line for each, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="how many kills")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--restarts", type=int, metavar="KILLS", help="of one supervised run")
    parser.add_argument("--ranks", default="2-4", help="numbers of ranks to draw from")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--only", type=int, nargs="+", help="the cases with these numbers")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's ignores it
    if options.restarts:
        sys.exit(not kill_one_run(options.restarts, options.seed))
    first, _, last = options.ranks.partition("-")
    ranks = range(int(first), int(last or first) + 1)
    numbers = options.only or range(options.cases)
    again = f"python -m benchmarks.kills --seed {options.seed} --ranks {options.ranks} --only "
    begun = time.monotonic()
    cases = [draw(options.seed, number, ranks) for number in numbers]
    results = kill_runs(cases, options.jobs, again)
    print(table(results))
    print(f"seed {options.seed}, {time.monotonic() - begun:.0f} s, {options.jobs} at a time")
    sys.exit(any(result.problems for result in results))


if __name__ == "__main__":
    main()
