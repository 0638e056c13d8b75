"""Links: what carries messages between two ranks, and how long bytes take on it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from numbers import Rational

from symgraph.core.errors import ScheduleError

Number = int | float | Fraction


@dataclass(frozen=True)
class Link:
    """What carries the messages of a channel: seconds of latency, bytes a second.

    A message begins when it is posted and the link is free, keeps the link for bytes / bandwidth
    and arrives that and the latency later. Channels whose links have the same name share one link;
    one without a name is the channel's own. by_receiver: the receiver carries the message, as
    between threads: it arrives when it is posted, and copying it is the receiver's time.
    """

    latency: Number = 0
    bandwidth: Number = inf
    name: str = ""
    by_receiver: bool = False


def as_fraction(value: Number, name: str) -> Fraction:
    """A cost, exactly; ScheduleError naming it if it is not finite or negative."""
    if value < 0 or not (isinstance(value, Rational) or isfinite(value)):
        raise ScheduleError(f"the cost of {name} is {value}; it must be finite and not negative")
    return Fraction(value) if isinstance(value, Rational) else Fraction(float(value))


def quotient(size: int, rate: Number, name: str) -> Fraction:
    """Seconds of so many bytes; ScheduleError naming the rate if it is not more than 0."""
    if not rate > 0:
        raise ScheduleError(f"{name} is {rate} bytes a second; it must be more than 0")
    return Fraction(0) if rate == inf else size / as_fraction(rate, name)
