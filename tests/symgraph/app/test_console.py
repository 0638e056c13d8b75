import io
import logging
import math
import os
import re
import threading

import pytest

from symgraph.app import console as module
from symgraph.app.console import Activity, Console
from symgraph.core.columns import fitting, wrapped
from symgraph.core.units import bytes_text, flops_text, seconds_text, value_text

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # anything but a line end


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def run(console, clock, count, a_step=1.0, **limits):
    """A run of equal steps whose loss falls by 0.1 a step from 5.0."""
    with console.progress(**limits) as progress:
        for i in range(count):
            clock.now += a_step
            progress.update(i + 1, (i + 1) * 100, 5.0 - i / 10)
    return progress


# -- not a terminal ---------------------------------------------------------------------------


def test_plain_progress_is_a_line_now_and_then(clock):
    out = io.StringIO()
    run(Console(out, clock=clock), clock, 25, steps=25)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "step 1/25",
        "step 11/25",
        "step 21/25",
        "step 25/25",
    ]
    assert lines[0] == "step 1/25  loss 5.000  perplexity 148.4  100 tokens/s"
    assert lines[1] == "step 11/25  loss 4.500  perplexity 90.02  100 tokens/s  14.0 s left"
    assert not lines[-1].endswith("left")
    assert not CONTROL.search(out.getvalue())


def test_ranks_of_a_launcher_write_plain_lines(clock, terminal):
    """F12: Open MPI gives ranks terminals, so bars and escape codes got into captured output."""
    run(Console(terminal, plain=True, clock=clock), clock, 3, steps=3)
    assert terminal.getvalue().startswith("step 1/3  loss 5.000")
    assert not CONTROL.search(terminal.getvalue())


def test_last_step_is_not_written_twice(clock):
    out = io.StringIO()
    run(Console(out, clock=clock), clock, 11, steps=11)
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == [
        "step 1/11",
        "step 11/11",
    ]


def test_rates_and_losses_are_those_of_the_last_seconds(clock):
    console = Console(io.StringIO(), clock=clock)
    with console.progress() as progress:
        for i in range(100):  # slow and bad at first: loading, compiling
            clock.now += 10.0 if i < 10 else 1.0
            progress.update(i + 1, (i + 1) * 100, 9.0 if i < 10 else 2.0)
        assert progress.status() == "step 100  loss 2.000  perplexity 7.389  100 tokens/s"


def test_loss_is_weighted_by_tokens(clock):
    with Console(io.StringIO(), clock=clock).progress() as progress:
        clock.now += 1.0
        progress.update(1, 30, 1.0)
        progress.update(2, 40, 5.0)
        assert "loss 2.000" in progress.status()


def test_time_left_is_that_of_the_limit_reached_first(clock):
    console = Console(io.StringIO(), clock=clock)
    assert run(console, clock, 10, steps=100, seconds=50.0).status().endswith("40.0 s left")
    assert run(console, clock, 10, steps=20, seconds=50.0).status().endswith("10.0 s left")
    assert run(console, clock, 60, seconds=50.0).status().endswith("tokens/s")


def run_with_evaluation(console, clock):
    with console.progress(steps=4) as progress:
        for i in range(4):
            clock.now += 1.0
            progress.update(i + 1, (i + 1) * 100, 2.0)
            if i == 1:
                clock.now += 1000.0
                progress.evaluation(2, {"perplexity": 123.456})
    return progress


def test_evaluation_is_a_line_and_its_time_is_in_no_rate(clock):
    out = io.StringIO()
    progress = run_with_evaluation(Console(out, clock=clock), clock)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/4", "step 2/4", "step 2", "step 4/4"]
    assert lines[2] == "step 2  held-out perplexity 123.5"
    assert "100 tokens/s" in progress.status()


def test_an_evaluation_at_the_end_comes_last(clock):
    out = io.StringIO()
    with Console(out, clock=clock).progress(steps=3) as progress:
        for step in (1, 2, 3):
            clock.now += 1.0
            progress.update(step, step * 100, 2.0)
        progress.evaluation(3, {"perplexity": 7.0})
    assert out.getvalue().splitlines()[1:] == [
        "step 3/3  loss 2.000  perplexity 7.389  100 tokens/s",
        "step 3  held-out perplexity 7",
    ]


def test_status_right_after_an_evaluation_has_no_rate_yet(clock):
    with Console(io.StringIO(), clock=clock).progress(steps=9) as progress:
        clock.now += 1.0
        progress.update(3, 300, 2.0)
        progress.evaluation(3, {"perplexity": 8.0})
        assert progress.status() == "step 3/9"


def test_a_diverged_loss_is_shown_as_it_is(clock):
    with Console(io.StringIO(), clock=clock).progress() as progress:
        clock.now += 1.0
        progress.update(1, 10, 1e6)
        assert "perplexity inf" in progress.status()
        progress.update(2, 20, math.nan)
        assert "loss nan  perplexity nan" in progress.status()
        for step in range(3, 6):  # forgotten once it is out of the window
            clock.now += 15.0
            progress.update(step, 10 * step, 1.0)
        assert "loss 1.000" in progress.status()


def test_a_step_that_was_left_out_is_not_in_the_mean(clock):
    """A single left-out step with loss nan made the displayed mean loss nan."""
    with Console(io.StringIO(), clock=clock).progress() as progress:
        clock.now += 1.0
        progress.update(1, 10, math.nan, left_out=True)
        assert "loss nan" in progress.status(), "there is no other"
        progress.update(2, 20, 1.0)
        progress.update(3, 30, math.inf, left_out=True)
        progress.update(4, 60, 3.0)
        assert progress.status() == "step 4  loss 2.500  perplexity 12.18  60 tokens/s"


def test_an_error_ends_the_progress_without_a_last_line(clock):
    out = io.StringIO()
    console = Console(out, clock=clock)

    def interrupted():
        with console.progress(steps=9) as progress:
            for i in range(3):
                clock.now += 1.0
                progress.update(i + 1, (i + 1) * 10, 2.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(out.getvalue().splitlines()) == 1


def test_plain_table_is_aligned_and_never_cut_off():
    out = io.StringIO()
    long = "x" * 300
    rows = [("[0]", 7, "1.5 MiB", None), ("[1]", 12345, "12 B", long)]
    Console(out).table("stages", ("stage", "nodes", "sent", "note"), rows)
    assert out.getvalue().splitlines() == [
        "stages",
        f"stage   nodes     sent  {'note':>300}",
        f"  [0]       7  1.5 MiB  {'-':>300}",
        f"  [1]  12,345     12 B  {long}",
    ]


def test_summary_names_every_figure():
    out = io.StringIO()
    Console(out).summary({"loss": 4.56789, "steps": 1500, "transport": "threads", "tied": True})
    assert out.getvalue().splitlines() == [
        "summary",
        "  loss       4.568",
        "  steps      1,500",
        "  transport  threads",
        "  tied       yes",
    ]


def test_lines_are_written_as_given():
    out = io.StringIO()
    text = "cut [red]at[/red] :smile: " + "word " * 100
    Console(out).line(text)
    assert out.getvalue() == text + "\n"


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_quiet_says_nothing(make, clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = make()
    console = Console(out, quiet=True, clock=clock)
    console.line("hello")
    console.table("t", ("a",), [(1,)])
    console.summary({"a": 1})
    run_with_evaluation(console, clock)
    assert out.getvalue() == ""


def test_colours_asked_for_in_the_environment_stay_out_of_files(clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    console = Console(out, clock=clock)
    run(console, clock, 12, steps=12)
    console.summary({"loss": 1.0})
    assert not CONTROL.search(out.getvalue())


def test_a_dumb_terminal_gets_plain_lines(clock, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    run(Console(terminal, clock=clock), clock, 12, steps=12)
    assert not CONTROL.search(terminal.getvalue())


# -- a terminal -------------------------------------------------------------------------------


def test_terminal_bar_grows_and_leaves_one_line(clock, terminal):
    run(Console(terminal, clock=clock), clock, 20, steps=20)
    drawn = terminal.getvalue()
    for step in range(1, 21):
        assert f"step {step}/20" in drawn
    bars = [frame.count("━") for frame in drawn.split("\r") if "step " in frame and "━" in frame]
    assert len(bars) >= 20
    assert "\x1b[?25l" in drawn  # the cursor is hidden ...
    assert "\x1b[?25h" in drawn  # ... and comes back
    assert drawn.endswith("\n")
    last = drawn.splitlines()[-1]
    assert "step 20/20  loss" in last
    assert "━" not in last


def test_terminal_is_not_redrawn_for_every_step(clock, terminal):
    console = Console(terminal, clock=clock)
    run(console, clock, 1000, a_step=0.001, steps=1000)
    assert terminal.getvalue().count("tokens/s") < 10


def test_terminal_bar_is_drawn_without_a_thread(clock, terminal):
    before = threading.active_count()
    with Console(terminal, clock=clock).progress(steps=3) as progress:
        clock.now += 1.0
        progress.update(1, 10, 1.0)
        assert threading.active_count() == before


def test_terminal_gets_its_cursor_back_after_an_error(clock, terminal):
    with pytest.raises(RuntimeError, match="lost"), Console(terminal).progress(steps=3):
        raise RuntimeError("lost")
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


def test_terminal_evaluation_is_above_the_bar(clock, terminal):
    run_with_evaluation(Console(terminal, clock=clock), clock)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "step 2  held-out perplexity 123.5" in plain
    assert plain.index("held-out") < plain.index("step 3/4")


# -- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-1234, "-1,234"),
        (0.0, "0"),
        (1e-9, "1e-09"),
        (3.14159, "3.142"),
        (123456.7, "123,457"),
        (1e300, "1e+300"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "-"),
        (False, "no"),
        ("a, b", "a, b"),
    ],
)
def test_value_text(value, text):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (10_240, "10.0 KiB"),
        (1023.4 * 1024, "1,023 KiB"),
        (1023.6 * 1024, "1.00 MiB"),
        (6_812_800 * 4, "26.0 MiB"),
        (5 * 2**50, "5,120 TiB"),
        (0.5, "0.50 B"),
    ],
)
def test_bytes_text(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (999_600, "1.00 MFLOP"),
        (2.5e12, "2.50 TFLOP"),
    ],
)
def test_flops_text(count, text):
    assert flops_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (2e-7, "0.20 µs"),
        (1.5e-6, "1.50 µs"),
        (9.996e-6, "10.0 µs"),
        (0.0123, "12.3 ms"),
        (0.9997, "1.00 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min 00 s"),
        (119.6, "2 min 00 s"),
        (3599.7, "1 h 00 min"),
        (90_000, "25 h 00 min"),
        (math.inf, "inf s"),
        (-1, "-1 s"),
    ],
)
def test_seconds_text(seconds, text):
    assert seconds_text(seconds) == text


def test_a_run_that_goes_on_does_not_count_what_was_done_before():
    """The first rate after a resume was that of all tokens since the very start."""
    now = [0.0]
    stream = io.StringIO()
    console = Console(stream, clock=lambda: now[0])
    with console.progress(steps=10, step=4, count=4000) as progress:
        now[0] = 2.0
        progress.update(5, 5000, 1.0)
    assert stream.getvalue().startswith("step 5/10  loss 1.000  perplexity 2.718  500 tokens/s")


def test_a_run_that_makes_no_step_has_no_progress(clock):
    """It said `step 20/10` where the checkpoint was beyond the limit."""
    stream = io.StringIO()
    with Console(stream, clock=clock).progress(10, 8.0, step=20, count=640) as progress:
        progress.evaluation(20, {"accuracy": 0.5})
    assert stream.getvalue() == "step 20  held-out accuracy 0.5\n"


# -- an activity ------------------------------------------------------------------------------


def test_what_takes_long_says_what_it_does(clock, monkeypatch):
    """A plan of 96 layers printed nothing for half a minute."""
    lines, written = io.StringIO(), threading.Event()
    monkeypatch.setattr(module, "LINE_EVERY", 1e-3)
    log = logging.getLogger("tests.activity")
    console = Console(lines, clock=clock)
    monkeypatch.setattr(console, "line", lambda text: (lines.write(wrapped(text)), written.set()))
    monkeypatch.setenv("COLUMNS", "40")
    with fitting(lines, os.environ), Activity(console, "planning", log.name):
        clock.now += 12
        log.debug("strategy %s", "chain on eight devices")
        assert written.wait(60)
    log.debug("not heard")
    assert lines.getvalue() == "planning (12 s): strategy chain on eight\n    devices"
    assert log.level == logging.NOTSET


def test_an_activity_tells_the_time_left_and_says_nothing_once_it_is_done(clock):
    """A search said nothing for 15 seconds, and training began with what planning had done last."""
    console = Console(io.StringIO(), clock=clock)
    log = logging.getLogger("tests.activity")
    activity = Activity(console, "at work", log.name)
    activity.emit(logging.makeLogRecord({"msg": "timing kernels", "done": 2, "of": 8}))
    clock.now += 4
    activity.emit(logging.makeLogRecord({"msg": "timing kernels", "done": 4, "of": 8}))
    assert activity.doing() == "timing kernels, 4 of 8 done, up to 8.00 s left"
    activity.emit(logging.makeLogRecord({"msg": ""}))
    assert activity.doing() == ""


def test_what_is_quick_says_nothing(monkeypatch):
    monkeypatch.setattr(module, "LINE_EVERY", 600.0)
    lines = io.StringIO()
    with Activity(Console(lines), "planning", "tests.activity"):
        logging.getLogger("tests.activity").debug("strategy chain")
    assert lines.getvalue() == ""
