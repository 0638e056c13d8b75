"""What a run shows its user: lines, tables, and a progress bar where there is a terminal.

Anywhere else (a pipe, a log file, CI) the same facts come as plain lines, one now and then, with no
control codes. A run that prints its result on stdout hands in stderr here.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from rich import box
from rich.console import Console as RichConsole
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

LINE_EVERY = 10.0  # seconds between two plain progress lines
REDRAW_EVERY = 0.25  # seconds between two drawings of the bar; drawn by update(), no thread does it
WINDOW = 20.0  # seconds that rates and losses are taken over


class Console:
    """Writes all that a run says to one stream; `quiet` says nothing (ranks other than 0)."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.quiet, self.clock = stream, quiet, clock
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.rich = RichConsole(
            file=stream, quiet=quiet, force_terminal=self.is_terminal, force_jupyter=False,
            markup=False, highlight=False, emoji=False,
            width=None if self.is_terminal else 10_000,  # in a file nothing is cut off or wrapped
        )  # fmt: skip

    def line(self, text: str = "") -> None:
        """Write one line; above the progress bar if there is one."""
        self.rich.print(text, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write rows below column names; columns of figures are right-justified."""
        cells = [[value_text(cell) for cell in row] for row in rows]
        assert all(len(row) == len(columns) for row in cells), "a cell for each column"
        style = box.SIMPLE_HEAD if self.is_terminal else box.MARKDOWN
        table = Table(box=style, show_header=any(columns), show_edge=False)
        for i, name in enumerate(columns):
            figures = all(row[i][:1] in "0123456789-" for row in cells)
            table.add_column(Text(name), justify="right" if figures else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        self.line(title)
        self.rich.print(table)

    def summary(self, rows: Mapping[str, object]) -> None:
        """Write the figures of a finished run, a name and a value a row."""
        self.table("summary", ("", ""), list(rows.items()))

    def progress(self, steps: int | None = None, seconds: float | None = None) -> Progress:
        """Progress of a run limited to so many steps or seconds, as a context manager."""
        return Progress(self, steps, seconds)


class _Sample(NamedTuple):
    time: float
    step: int
    tokens: int  # since the start
    nll: float  # summed over the tokens of this step


class Progress:
    """Steps, loss, perplexity, tokens a second and time left, over the last `WINDOW` seconds."""

    def __init__(self, console: Console, steps: int | None, seconds: float | None) -> None:
        self.console, self.steps, self.seconds = console, steps, seconds
        self._start = console.clock()
        self._samples = deque([_Sample(self._start, 0, 0, 0.0)])
        self._shown_at = -math.inf
        self._shown_step = 0
        self._bar = RichProgress(
            BarColumn(bar_width=None), TextColumn("{task.description}"),
            console=console.rich, auto_refresh=False, expand=True, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
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
        if kind is None and (self.console.is_terminal or self._shown_step < self._samples[-1].step):
            self.console.line(self.status())

    def update(self, step: int, tokens: int, loss: float) -> None:
        """Say that `step` steps are done, with `tokens` in all; loss: mean NLL of the last one."""
        now, samples = self.console.clock(), self._samples
        nll = loss * (tokens - samples[-1].tokens)
        samples.append(_Sample(now, step, tokens, nll))
        while len(samples) > 2 and now - samples[1].time >= WINDOW:
            samples.popleft()
        if now - self._shown_at >= (REDRAW_EVERY if self.console.is_terminal else LINE_EVERY):
            self._shown_at, self._shown_step = now, step
            self._show()

    def evaluation(self, step: int, perplexity: float) -> None:
        """Write the held-out perplexity after a step; the time it took is in no rate."""
        self.console.line(f"step {step:,}  held-out perplexity {value_text(perplexity)}")
        last = self._samples[-1]
        self._samples = deque([last._replace(time=self.console.clock())])

    def status(self) -> str:
        """The progress line, such as `step 120/500  loss 5.12  perplexity 167  1,234 tokens/s`."""
        first, last = self._samples[0], self._samples[-1]
        parts = [f"step {last.step:,}" + (f"/{self.steps:,}" if self.steps else "")]
        tokens, elapsed = last.tokens - first.tokens, last.time - first.time
        if tokens:
            loss = sum(sample.nll for sample in islice(self._samples, 1, None)) / tokens
            perplexity = math.inf if loss > 700 else math.exp(loss)
            parts.append(f"loss {loss:.3f}  perplexity {value_text(perplexity)}")
        if tokens and elapsed > 0:
            parts.append(f"{tokens / elapsed:,.0f} tokens/s")
        left = self._seconds_left(first, last)
        if left:
            parts.append(f"{seconds_text(left)} left")
        return "  ".join(parts)

    def _seconds_left(self, first: _Sample, last: _Sample) -> float | None:
        limits = []
        if self.steps and last.step > first.step:
            a_step = (last.time - first.time) / (last.step - first.step)
            limits.append((self.steps - last.step) * a_step)
        if self.seconds:
            limits.append(self.seconds - (last.time - self._start))
        return max(0.0, min(limits)) if limits else None

    def _show(self) -> None:
        if not self.console.is_terminal:
            self.console.line(self.status())
            return
        last = self._samples[-1]
        of_steps = last.step / self.steps if self.steps else 0.0
        of_time = (last.time - self._start) / self.seconds if self.seconds else 0.0
        self._bar.update(
            self._task, completed=min(1.0, max(of_steps, of_time)), description=self.status()
        )
        self._bar.refresh()


def value_text(value: object) -> str:
    """A cell of a table: figures to four digits, thousands apart, - for nothing.

    >>> value_text(1234567), value_text(0.00123456), value_text(23456.7), value_text(None)
    ('1,234,567', '0.001235', '23,457', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"
    return str(value)


def bytes_text(count: float) -> str:
    """Bytes in binary units.

    >>> bytes_text(512), bytes_text(1536), bytes_text(4 * 2**30)
    ('512 B', '1.50 KiB', '4.00 GiB')
    """
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def flops_text(count: float) -> str:
    """Floating-point operations in decimal units.

    >>> flops_text(13_920_000)
    '13.9 MFLOP'
    """
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def seconds_text(seconds: float) -> str:
    """A length of time, from microseconds to hours.

    >>> seconds_text(1.234e-5), seconds_text(0.25), seconds_text(7.891), seconds_text(3725)
    ('12.3 µs', '250 ms', '7.89 s', '1 h 02 min')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return f"{seconds:.4g} s"
    if seconds < 59.95:
        return _scaled(seconds * 1e6, 1000, ("µs", "ms", "s"))
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Three significant digits in the largest unit that leaves at least 1 before the point."""
    at = 0
    while abs(value) >= base - 0.5 and at < len(units) - 1:  # 999.6 would be shown as 1000
        value, at = value / base, at + 1
    size = abs(value)
    whole = value == int(value) and at == 0 if math.isfinite(value) else True
    digits = 0 if whole or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f} {units[at]}"
