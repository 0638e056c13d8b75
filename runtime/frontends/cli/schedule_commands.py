"""The commands that need no network: simulate a schedule, verify a plan, read flight records.

    python -m runtime simulate --schedule 1f1b --stages 4 --micro-batches 8
    python -m runtime verify FILE
    python -m runtime postmortem FOLDER

Exit status: 0 done, 1 the plan is wrong, 2 bad input (one clear line, no traceback).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from fractions import Fraction

from runtime.frontends.cli import verify
from runtime.frontends.cli.postmortem import tell
from runtime.frontends.cli.simulate import explore
from runtime.schedule.generators.table import SCHEDULES
from symgraph.app.command_line import OK, Parser, status_of

DESCRIPTION = """\
Generate a pipeline schedule or read one from a file, prove that it is complete
and cannot hang, and simulate it with the times that you pass: how long a step
takes, how long ranks wait and for what, and how many micro-batches they hold.

All times are in one unit of your choice; write them like 2, 0.25, 1e-6 or 1/3.
The figures are exact. Times of runs are for all stages of a rank together and
one micro-batch: with --chunks 2, each of the two stages of a rank takes half.
Ranks are devices."""
EXAMPLES = """\
examples:
  symgraph simulate --schedule 1f1b --stages 4 --micro-batches 8 --backward 2
        33 with a bubble of 3 / 11 of the time; --latency 0.25 makes it 37, and
        gpipe 34.5
  symgraph simulate --schedule interleaved --chunks 2 --stages 4 \\
          --micro-batches 8
        28.5: two stages per rank halve the bubble
  symgraph simulate --schedule zb-h1 --stages 4 --micro-batches 8 \\
          --backward 1 --weight 1
        27: computing gradients of weights (W) fills the bubble
  symgraph simulate --schedule wavefront --stages 4 --micro-batches 1 \\
          --forward-only --time-steps 60 --time-segment 6 --overhead 2
        104: a recurrent network cut along time into ten segments of six steps;
        uncut it takes 248
  symgraph simulate --schedule zb-v --stages 4 --micro-batches 8 --dump zb.txt
  symgraph simulate --schedule zb.txt --capacity 0 --svg zb.svg
        edit the file as you like: an error says what is out of order or would
        hang

exit status: 0 done, 2 bad input"""
VERIFICATION = """\
Check the text of a plan with code that shares nothing with the planner:
everything is computed once, on its device, after what it needs; every message
is sent and received once; no rank waits for ever, even if channels hold no
message; nothing is freed or written over before its last use; gradients get all
their terms; memory keeps to its limit. Each line says one thing that is wrong.

exit status: 0 nothing is wrong, 1 something is, 2 the file is no plan"""
LARGEST = Fraction(10) ** 30  # figures are printed as floats, and times are ticks of 64 bits
EXPONENT = 4  # characters


def main(argv: Sequence[str] | None = None, prog: str = "python -m runtime") -> int:
    """Run the command line and return the exit status."""
    parser = Parser(prog=prog, description="Explore pipeline schedules and verify plans.")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    add_commands(commands.add_parser)

    def work() -> int:
        options = parser.parse_args(argv)
        if options.command == "verify":
            return verify.main(options.file)
        if options.command == "postmortem":
            tell(options)
        else:
            explore(options)
        return OK

    return status_of(work)


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a command line by the `add_parser` of its subparsers."""
    simulate = add_parser(
        "simulate",
        help="predict how long a schedule takes, without any network",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_pipeline(simulate)
    _add_times(simulate)
    _add_messages(simulate)
    _add_segments(simulate)
    _add_output(simulate)
    verification = add_parser(
        "verify",
        help="check a plan that `symgraph plan CONFIG --dump FILE` wrote",
        description=VERIFICATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verification.add_argument("file", metavar="FILE", help="the plan")
    postmortem = add_parser(
        "postmortem", help="say who waited for whom, from the flight records of a run that failed"
    )
    postmortem.add_argument("files", nargs="+", metavar="FILE|FOLDER")


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the pipeline")
    group.add_argument(
        "--schedule",
        default="1f1b",
        metavar="NAME|FILE",
        help=f"{', '.join(SCHEDULES)} (default: %(default)s); auto: searched for these times, with "
        "a lower bound; or a file, either of PyTorch's _dump_csv (.csv: a row per rank, cells like "
        "2F0) or of text (a line per rank, such as 0F0 0F1 0B0 0B1)",
    )
    group.add_argument(
        "--stages",
        type=_count,
        metavar="P",
        help="number of ranks, each with one stage of the network or with --chunks of them",
    )
    group.add_argument("--micro-batches", type=_count, metavar="M", help="per step")
    group.add_argument(
        "--chunks",
        type=_count,
        metavar="V",
        help="stages per rank: stage s is on rank s mod P; with zb-v and dualpipe-v, stages go "
        "down the ranks and up again (default: 2 if the schedule is made for that, else 1)",
    )
    group.add_argument(
        "--placement",
        type=_placement,
        metavar="0,1,1,0",
        help="rank of every stage, instead of --stages and --chunks",
    )
    group.add_argument(
        "--order",
        choices=("reverse", "forward"),
        help="order of micro-batches in gpipe's backward phase (default: reverse)",
    )
    group.add_argument("--forward-only", action="store_true", help="no backward phase")


def _add_times(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("times, for one micro-batch on one rank")
    group.add_argument(
        "--forward", type=_time, default=Fraction(1), metavar="F", help="forward (default: 1)"
    )
    group.add_argument(
        "--backward",
        type=_time,
        metavar="B",
        help="backward (default: twice the forward); with --weight, the gradients of inputs (I) "
        "alone (default: the forward)",
    )
    group.add_argument(
        "--weight",
        type=_time,
        metavar="W",
        help="gradients of weights (W); cuts the backward of every schedule into I and W (default, "
        "if the schedule cuts it: half of --backward for each)",
    )
    group.add_argument(
        "--overhead",
        type=_time,
        default=Fraction(0),
        metavar="O",
        help="added to every run, however short (default: 0)",
    )


def _add_messages(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("messages between ranks, which take no time of the ranks")
    group.add_argument(
        "--latency", type=_time, default=Fraction(0), metavar="A", help="per message (default: 0)"
    )
    group.add_argument(
        "--bandwidth",
        type=_rate,
        metavar="RATE",
        help="bytes per unit of time on every link (default: no limit); needs --message-bytes",
    )
    group.add_argument("--message-bytes", type=_count, metavar="N", help="bytes per message")
    group.add_argument(
        "--capacity",
        type=_capacity,
        default=None,
        metavar="N|none",
        help="messages that a link buffers until they are received; 0: the sender keeps its buffer "
        "until then (default: none, which is no limit)",
    )


def _add_segments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("segments, for recurrent networks cut along time")
    group.add_argument(
        "--time-steps",
        type=_count,
        metavar="T",
        help="steps of the network; the times of runs are then for one step",
    )
    group.add_argument(
        "--time-segment",
        type=_count,
        metavar="K",
        help="steps per segment; the last may have fewer (default: all, the network is not cut)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print all figures as a JSON object on the last line"
    )
    group.add_argument("--no-chart", action="store_true", help="do not draw the runs of the ranks")
    group.add_argument("--svg", metavar="FILE", help="write a picture of all runs and messages")
    group.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev or chrome://tracing"
    )
    group.add_argument("--csv", metavar="FILE", help="write the runs for PyTorch's _load_csv")
    group.add_argument("--dump", metavar="FILE", help="write all instructions, for --schedule")


def _number(text: str) -> Fraction:
    exponent = text.lower().partition("e")[2]  # before 1e999999999 is written out
    try:
        number = Fraction(0 if len(exponent) > EXPONENT else text)
    except (ValueError, ZeroDivisionError):
        message = f"{text!r} is not a number; write it like 2, 0.25, 1e-6 or 1/3"
        raise argparse.ArgumentTypeError(message) from None
    if len(exponent) > EXPONENT or (number and not 1 / LARGEST <= abs(number) <= LARGEST):
        message = f"{text[:40]} is not between 1e-30 and 1e30; choose another unit"
        raise argparse.ArgumentTypeError(message)
    return number


def _time(text: str) -> Fraction:
    number = _number(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must not be negative")
    return number


def _rate(text: str) -> Fraction:
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _capacity(text: str) -> int | None:
    if text in ("none", "0"):
        return None if text == "none" else 0
    try:
        return _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, 0 or none") from None


def _placement(text: str) -> tuple[int, ...]:
    ranks = [rank.strip() for rank in text.split(",")]
    if not all(rank.isascii() and rank.isdigit() for rank in ranks):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of ranks; write it like 0,1,1,0")
    return tuple(map(int, ranks))
