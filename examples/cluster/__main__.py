"""Runs a command line over several hosts, each of which is a network namespace of this machine.

    python -m examples.cluster --hosts 4 --delay 10ms --bandwidth 100Mbit -- \
        mpiexec -n 4 symgraph train examples/lstm_lm.yaml train.steps=20

Hosts are called host1, host2, ...; the command runs on host1. mpiexec of MPICH and of Open MPI find
their hosts, and the launcher that enters them instead of ssh, in environment variables. The
machine's own network is not touched. It needs root, Linux and iproute2.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from examples.arguments import positive
from examples.cluster.hosts import Hosts
from examples.cluster.relay import Cut, Link, relay
from symgraph.core.errors import ConfigError
from symgraph.core.units import parse_si


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the status of the command that it runs."""
    parser = _parser()
    options = parser.parse_args(words)
    for cut in options.cut:
        if not 1 <= cut.host <= options.hosts:
            parser.error(
                f"argument --cut: there is no host{cut.host}, as --hosts is {options.hosts}"
            )
    command = options.command[options.command[:1] == ["--"] :]
    if not command:
        print("examples.cluster: which command? give it after --", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # else the command ignores it too
            signal.signal(number, _end)
    link = Link(options.delay, options.bandwidth / 8, options.loss)
    try:
        with Hosts(options.hosts, options.slots) as hosts:
            return relay(hosts, command, link, options.cut, random.Random(options.seed))
    except (OSError, ConfigError) as error:
        print(f"examples.cluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m examples.cluster", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--hosts", type=positive, default=2, help="how many (default: 2)")
    add("--slots", type=positive, default=1, help="ranks of each host (default: 1)")
    add("--delay", type=_seconds, default=0.0, help="of a packet, one way, such as 10ms")
    add("--bandwidth", type=_bits, default=float("inf"), help="of a host each way: 100Mbit")
    add("--loss", type=_share, default=0.0, help="share of packets that get lost, such as 0.1%%")
    add("--cut", type=_cut, action="append", default=[], metavar="HOST@SECONDS")
    add("--seed", type=int, default=0, help="of the losses")
    add("command", nargs=argparse.REMAINDER, help="-- and the command line to run on host1")
    parser.epilog = "--cut 2@20 cuts host2 off from all others 20 s after the command's start."
    return parser


def _seconds(text: str) -> float:
    return _figure(text, "s")


def _bits(text: str) -> float:
    bits = _figure(text.removesuffix("/s") + "/s", "bit/s")
    if not bits:
        raise argparse.ArgumentTypeError("nothing passes at 0 bit/s")
    return bits


def _figure(text: str, unit: str) -> float:
    try:
        return parse_si(text, unit)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _share(text: str) -> float:
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= share <= 1:
            return share
    raise argparse.ArgumentTypeError(f"expected a share, such as 0.1% or 0.001, got {text!r}")


def _cut(text: str) -> Cut:
    with suppress(ValueError):
        host, seconds = text.removeprefix("host").split("@")
        return Cut(int(host), float(seconds.removesuffix("s")))
    raise argparse.ArgumentTypeError(f"expected a host and seconds, such as 2@20, got {text!r}")


if __name__ == "__main__":
    sys.exit(main())
