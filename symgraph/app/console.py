"""Console output of a run: lines, tables, and a progress bar on a terminal.

Elsewhere (a pipe, a log file, CI) progress is written as plain lines at intervals, without control
codes. A run that prints its result on stdout passes stderr here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from symgraph.core.columns import aligned_columns, columns, wrapped
from symgraph.core.errors import OutputClosed
from symgraph.core.units import seconds_text, value_text
from symgraph.core.visible import visible, visible_lines

LINE_EVERY = 10.0  # seconds between two plain progress lines
REDRAW_EVERY = 0.25  # seconds between two drawings of the bar, by update() and not by a thread
SAY_EVERY = 1.0  # seconds before the first line of an activity, and between two, on a terminal
SAY_AGAIN = 5.0  # seconds between two lines that say the same but for the time left
WINDOW = 20.0  # seconds over which rates and losses are averaged


class _Rich(RichConsole):
    """A rich console that raises OutputClosed instead of exiting, so other ranks are told."""

    def on_broken_pipe(self) -> None:
        raise OutputClosed("nobody reads the output any more, so the run ends here")


class Console:
    """All output of a run, on one stream.

    Args:
        stream: where to write.
        quiet: write nothing (ranks other than 0).
        plain: write no control codes, even on a terminal (ranks of a launcher: Open MPI gives them
            terminals of their own, whose output it copies to wherever its own goes).
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock, self.quiet = clock, quiet
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.is_terminal = terminal and not plain
        self.rich = _Rich(
            file=stream,
            quiet=quiet,
            force_terminal=self.is_terminal,
            force_jupyter=False,
            markup=False,
            highlight=False,
            emoji=False,
            # never cut off or wrap lines in a file
            width=columns() or (None if self.is_terminal else 10_000),
        )

    def line(self, text: str = "") -> None:
        """Write one line, above any progress bar."""
        self.rich.print(wrapped(visible_lines(text)), soft_wrap=True)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table, with what its columns mean."""
        cells = [tuple(visible(value_text(cell)) for cell in row) for row in rows]
        assert all(len(row) == len(head) for row in cells), "a cell for each column"
        self.line(title)
        for line in aligned_columns([tuple(head), *cells]):
            self.line(line)

    def summary(self, rows: Mapping[str, object]) -> None:
        """Write the figures of a finished run, one name and value per row."""
        self.line("summary")
        for name, value in rows.items():
            self.line(f"  {name:<{max(map(len, rows))}}  {visible(value_text(value))}")

    def progress(
        self,
        steps: int | None = None,
        seconds: float | None = None,
        unit: str = "tokens",
        *,
        step: int = 0,
        count: int = 0,
    ) -> Progress:
        """Return the progress display of a run, a context manager.

        Args:
            steps: limit of steps; None: no limit.
            seconds: limit of seconds; None: no limit.
            unit: what is counted, "samples" or "tokens".
            step: steps done before, by the run that this one resumes.
            count: samples or tokens processed before.
        """
        return Progress(self, steps, seconds, unit, step, count)


class Activity(logging.Handler):
    """Lines that say what a program is busy with, once that takes longer than a second.

    A context manager. What it says are the messages of a logger, at most one line a second, each
    once: `planning (12 s): strategy chain on 8 devices`. In a file, a line in ten seconds. A record
    may say how much is done, `extra={"done": 3, "of": 8}`; then the time left is told too. An empty
    message says that nothing is being done any more.
    """

    def __init__(self, console: Console, title: str, logger: str) -> None:
        """Make a display that is silent until it is entered.

        Args:
            console: where to write.
            title: the word that lines begin with.
            logger: the name of the logger, whose messages of level DEBUG are shown.
        """
        super().__init__(logging.DEBUG)
        self.console, self.title = console, title
        self._logger = logging.getLogger(logger)
        self._begun, self._doing = console.clock(), ""
        self._template, self._first = "", 0  # of the messages of one kind; done before the first
        self._first_at, self._done, self._of = self._begun, 0, 0
        self._heard = 0  # messages
        self._end = threading.Event()
        inside = copy_context()  # lines have the columns of this thread
        self._thread = threading.Thread(target=inside.run, args=(self._say,), daemon=True)

    def __enter__(self) -> Self:
        self._level = self._logger.level
        self._logger.setLevel(min(self._logger.getEffectiveLevel(), logging.DEBUG))
        self._logger.addHandler(self)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._end.set()
        self._thread.join()

    def emit(self, record: logging.LogRecord) -> None:
        """Note what is done now."""
        self._heard += 1
        done, now = getattr(record, "done", 0), self.console.clock()
        if record.msg != self._template or done < self._done:
            self._template, self._first, self._first_at = record.msg, done, now
        self._doing, self._done, self._of = record.getMessage(), done, getattr(record, "of", 0)

    def _say(self) -> None:
        """Write what has not been written, every second until the end."""
        said, told, said_at = "", 0, -math.inf
        every = SAY_EVERY if self.console.is_terminal else LINE_EVERY
        while not self._end.wait(every):
            doing, heard, now = self._doing, self._heard, self.console.clock()
            if doing and (doing != said or (heard > told and now - said_at >= SAY_AGAIN)):
                with suppress(OSError):  # nobody reads it any more
                    self.console.line(f"{self.title} ({now - self._begun:.0f} s): {self.doing()}")
                said, told, said_at = doing, heard, now

    def doing(self) -> str:
        """Return what is being done, how much of that is done, and the time that the rest takes."""
        if self._of < 2:
            return self._doing
        done, took = self._done - self._first, self.console.clock() - self._first_at
        seconds = took / done * (self._of - self._done) if done else 0.0
        left = f", up to {seconds_text(seconds)} left" if seconds >= SAY_EVERY else ""
        return f"{self._doing}, {self._done:,} of {self._of:,} done{left}"


class _Sample(NamedTuple):
    time: float
    step: int
    done: int  # samples or tokens since the start
    loss: float  # summed over those of this step
    own: int = 0  # samples or tokens of this step whose loss counts


class Progress:
    """Steps, loss, pace and time left, averaged over `WINDOW` seconds; perplexity of tokens."""

    def __init__(
        self,
        console: Console,
        steps: int | None,
        seconds: float | None,
        unit: str,
        step: int,
        count: int,
    ) -> None:
        self.console, self.steps, self.seconds, self.unit = console, steps, seconds, unit
        self._start = console.clock()
        self._samples = deque([_Sample(self._start, step, count, 0.0)])
        self._shown_at = -math.inf
        self._written_step = step  # which nothing is said of before another one
        self._bar = RichProgress(
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            console=console.rich,
            auto_refresh=False,
            expand=True,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=1.0 if steps or seconds else None)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._bar.stop()
        if kind is None:
            self._write()

    def update(self, step: int, count: int, loss: float, *, left_out: bool = False) -> None:
        """Report the state after a step.

        Args:
            step: steps done.
            count: samples or tokens processed in all of them.
            loss: mean loss of the last step.
            left_out: whether its update was left out; then a loss that is not finite does not
                count, unless there is no other.
        """
        now, samples = self.console.clock(), self._samples
        own = 0 if left_out and not math.isfinite(loss) else count - samples[-1].done
        samples.append(_Sample(now, step, count, loss * own if own else 0.0, own))
        while len(samples) > 2 and now - samples[1].time >= WINDOW:
            samples.popleft()
        if now - self._shown_at >= (REDRAW_EVERY if self.console.is_terminal else LINE_EVERY):
            self._shown_at = now
            if self.console.is_terminal:
                self._draw()
            else:
                self._write()

    def evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Write held-out figures after a step; rates exclude the time of the evaluation."""
        self._write()
        shown = ", ".join(
            f"{name} {value_text(value)}"
            for name, value in figures.items()
            if name != "loss" or self.unit != "tokens"
        )
        self.console.line(f"step {step:,}  held-out {shown}")
        self._shown_at = self.console.clock()
        self._samples = deque([self._samples[-1]._replace(time=self._shown_at)])

    def status(self) -> str:
        """Return the line, such as `step 120/500  loss 5.12  perplexity 167  1,234 tokens/s`."""
        first, last = self._samples[0], self._samples[-1]
        parts = [f"step {last.step:,}" + (f"/{self.steps:,}" if self.steps else "")]
        count, elapsed = last.done - first.done, last.time - first.time
        if count:
            own = sum(sample.own for sample in islice(self._samples, 1, None))
            total = sum(sample.loss for sample in islice(self._samples, 1, None))
            loss = total / own if own else math.nan
            parts.append(f"loss {loss:.3f}")
            if self.unit == "tokens":
                perplexity = math.inf if loss > 700 else math.exp(loss)
                parts.append(f"perplexity {value_text(perplexity)}")
        if count and elapsed > 0:
            parts.append(f"{count / elapsed:,.0f} {self.unit}/s")
        seconds_left = self._seconds_left(first, last)
        if seconds_left:
            parts.append(f"{seconds_text(seconds_left)} left")
        return "  ".join(parts)

    def _seconds_left(self, first: _Sample, last: _Sample) -> float | None:
        limits = []
        if self.steps and len(self._samples) > 2:  # the first step may compile kernels
            first = self._samples[1]
            seconds_per_step = (last.time - first.time) / (last.step - first.step)
            limits.append((self.steps - last.step) * seconds_per_step)
        if self.seconds:
            limits.append(self.seconds - (last.time - self._start))
        return max(0.0, min(limits)) if limits else None

    def _write(self) -> None:
        """Write the progress line, unless it has been written for this step."""
        if self._written_step < self._samples[-1].step:
            self._written_step = self._samples[-1].step
            self.console.line(self.status())

    def _draw(self) -> None:
        last = self._samples[-1]
        step_share = last.step / self.steps if self.steps else 0.0
        time_share = (last.time - self._start) / self.seconds if self.seconds else 0.0
        self._bar.update(
            self._task, completed=min(1.0, max(step_share, time_share)), description=self.status()
        )
        self._bar.refresh()
