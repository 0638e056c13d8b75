"""Contract of a transport: messages and collectives between ranks, and how failures spread.

A `Cluster` starts the ranks and gives each one its endpoint, a `Transport`. Messages of one
(src, dst) channel arrive in the order sent, whatever their tags, because NCCL has no tags and MPI
orders only within one: a tag is a check, never a choice. `send` never blocks, so two neighbours can
send to each other at the same time. Every wait ends: with the message, with `PeerFailed`, or with
`TransportTimeout`. Ranks that wait for each other, or for a rank whose work has ended, are a
failure as well (`stalls.py`). `tests/contracts/transport.py` checks these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from partitioner.base.collectives import CollectiveLayout, Group
from runtime.backends.parcels import Parcel
from symgraph.app.command_line import FAILED, exit_status
from symgraph.core.errors import ConfigError, DTypeError, PeerFailed, RunError, TransportTimeout
from symgraph.core.types import BFLOAT16, DTYPES
from symgraph.core.units import count_text

T = TypeVar("T")

TIMEOUT_SECONDS = 300.0  # the longest single wait, unless the user says otherwise
HEARTBEAT_SECONDS = 20.0  # of silence after which a rank counts as lost, unless the user says so
GRACE_SECONDS = 3.0  # how long a failing rank stays alive so that the others hear why

CARRIED = frozenset(map(np.dtype, DTYPES))


def is_carried(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of this dtype can be sent."""
    return dtype in CARRIED or dtype.name == BFLOAT16


# What the launchers of MPICH and Intel MPI, Open MPI, and PMIx managers (srun, prterun) set.
LAUNCHER_VARIABLES = (
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
)


@dataclass(frozen=True)
class Failure:
    """The first error of a run, as every rank hears of it."""

    #: The rank that failed; -1: the caller, not a rank.
    rank: int
    #: Instruction and node, if known: "1F0 (step 12), node 'l1_t3_i2h'".
    where: str
    #: The error: "ZeroDivisionError: division by zero".
    message: str
    #: The exit status of that rank.
    status: int = FAILED

    def __str__(self) -> str:
        if self.rank < 0:
            return self.message
        return f"rank {self.rank} failed{f' at {self.where}' if self.where else ''}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Return the failure as a JSON-able object, of which `Failure(**fields)` makes it again."""
        return asdict(self)


class Doing(NamedTuple):
    """What a rank is doing, as its transport knows."""

    #: The text of the last `waiting_for`.
    what: str = ""
    #: What it waits for; "": nothing.
    wait: str = ""
    #: The ranks that it waits for, if they are known.
    needs: tuple[int, ...] = ()
    #: When the wait began, in ns of `time.perf_counter_ns`.
    since: int = 0


class Ticket(Protocol):
    """A message in transit."""

    def done(self) -> bool:
        """Return whether the sender may overwrite its buffer."""
        ...

    def wait(self) -> None:
        """Wait until the sender may overwrite its buffer; raise like every wait."""
        ...


class CollectiveTicket(Ticket, Protocol):
    """A collective in progress."""

    def returned(self) -> bool:
        """Return whether calls that this rank makes next may overwrite what it has given."""
        ...

    def wait_for_return(self) -> None:
        """Wait until `returned`; raise like every wait.

        The others take part once they wait for the collective, or ask whether it is done.
        """
        ...


class Lent(Ticket, Protocol):
    """Arrays that ranks lend each other; done when all have lent theirs."""

    def of(self, rank: int) -> Mapping[str, npt.NDArray[Any]]:
        """Return a rank's arrays, by name; the ticket is done."""
        ...


Lend = Callable[[CollectiveLayout, Mapping[str, npt.NDArray[Any]]], Lent]


class Collectives(Protocol):
    """Collectives among some of the ranks. Those of one group are matched by their order."""

    def join(self, groups: Sequence[Group], cards: Collection[int] = ()) -> None:
        """Prepare collectives of these groups; all ranks pass the same ones.

        cards: the ranks whose values lie on GPUs.
        """
        ...

    def module(self, ranks: Sequence[int]) -> Any:
        """Return the array module for collectives of these ranks: numpy, or CuPy between GPUs.

        It is the same on all of them; None: each may use its own.
        """
        ...

    def start(
        self, blocks: CollectiveLayout, out: npt.NDArray[np.uint8], into: npt.NDArray[np.uint8]
    ) -> CollectiveTicket:
        """Start a collective and return at once; all of its ranks start theirs in one order.

        Args:
            blocks: Who gives how many bytes to whom.
            out: The bytes that this rank gives; not to be overwritten or reused until the ticket
                is `returned`, or until this rank has received a later collective of these ranks
                whose `out` the others compute from what they have read.
            into: Receives `blocks.column`, one block after the other; not to be touched until the
                ticket is done.

        Both arrays, unless empty, are of the ranks' `module`.
        """
        ...

    @property
    def lend(self) -> Lend | None:
        """Start a collective in which ranks read the others' arrays where they are.

        None: ranks cannot, as each has its own memory. Nothing is copied, and nobody says when he
        has read: arrays, which are the host's, stay as they are until all ranks have met again.
        """
        ...


class Transport(Protocol):
    """One rank's endpoint, used by that rank's thread only."""

    rank: int
    size: int
    timeout: float  # seconds a single wait may take

    @property
    def collectives(self) -> Collectives:
        """Collectives among some of the ranks."""
        ...

    def open(self, channels: Sequence[tuple[int, int]]) -> None:
        """Prepare channels (src, dst) for values on GPUs; all ranks pass the same ones.

        Values travel on other channels too, but perhaps more slowly.
        """
        ...

    def send(self, array: npt.NDArray[Any], dst: int, tag: int) -> Ticket:
        """Start a message and return at once; do not change `array` until the ticket is done."""
        ...

    def recv(self, out: npt.NDArray[Any], src: int, tag: int) -> None:
        """Wait for the next message of channel (src, this rank) and copy it into `out`.

        `out` is C-contiguous. `RunError` if the message has another shape, dtype or tag.
        """
        ...

    def send_all(self, parcel: Parcel, dst: int, tags: Sequence[int]) -> Ticket:
        """Start messages that the receiver takes by one `recv_all`; tags: one for each array.

        The ticket is done when all of them may be overwritten.
        """
        ...

    def recv_all(self, parcel: Parcel, src: int, tags: Sequence[int]) -> None:
        """Wait for the messages of the channel's next `send_all`, and copy them."""
        ...

    def allreduce(self, array: npt.NDArray[np.float64]) -> None:
        """Replace a float64 vector by its sum over ranks, added in the order of ranks."""
        ...

    def exchange(self, obj: Any) -> list[Any]:
        """Give every rank one small JSON-able object; return those of all ranks, by rank."""
        ...

    def waiting_for(self, what: str) -> None:
        """Set the text of the current instruction, for the errors of later waits."""
        ...

    def abort(self, failure: Failure) -> None:
        """Tell every rank that the run has failed; only the first failure counts."""
        ...

    def close(self) -> None:
        """Refuse any further use; idempotent."""
        ...


class Cluster(Protocol):
    """The ranks of a run; it runs work on those that live in this process."""

    size: int
    cores: int  # that each rank has on this host

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {count_text(self.size, 'rank')}>"

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that live in this process."""
        ...

    def run(self, work: Callable[[Transport], T]) -> list[T]:
        """Call `work(endpoint)` on every local rank; return the results by rank.

        If a rank raises, the waits of all others raise `PeerFailed`, and the first error is raised
        here. A rank that knows more than its exception says calls `endpoint.abort` first. Work has
        to receive every message that is sent to it; messages left over are undefined behaviour.
        """
        ...

    def alarm(self, call: Callable[[Failure], None]) -> None:
        """Register a call to be made, on any thread, when a failure is first heard of."""
        ...

    def doing(self, rank: int) -> Doing:
        """Return what a local rank is doing; any thread may ask."""
        ...

    def close(self) -> None:
        """Stop the ranks and their helpers; idempotent."""
        ...

    def complete(self) -> None:
        """Close; raise `PeerFailed` if a rank has failed since this one's work was done."""
        self.close()

    def leave(self, status: int, why: str = "") -> None:
        """Stop after a failure; a process that is one of several ranks exits with `status`.

        Args:
            status: The exit status.
            why: What the other ranks are told, unless they know of a failure.
        """
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def launched_by_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether an MPI launcher (mpiexec, mpirun, srun) set this environment."""
    return any(name in environ for name in LAUNCHER_VARIABLES)


def wrong_size(transport: str, ranks: int, started: int) -> ConfigError:
    """Return the error for an MPI launch with more or fewer processes than ranks."""
    return ConfigError(
        f"transport {transport!r}: the run has {ranks} ranks, but {started} processes were "
        f"started; use mpiexec -n {ranks}"
    )


def type_text(array: npt.NDArray[Any]) -> str:
    """Return an array's type as errors show it: "float32 (3, 4)"."""
    return f"{array.dtype} {array.shape}"


def check_peer(verb: str, rank: int, peer: int, size: int) -> None:
    """Raise `RunError` unless `peer` is another rank of the run."""
    if peer == rank:
        raise RunError(
            f"{verb}: rank {rank} names itself as its peer; values that stay on a rank are shared, "
            "not sent"
        )
    if not 0 <= peer < size:
        raise RunError(
            f"{verb}: rank {rank} names rank {peer}, but the run has ranks 0..{size - 1}"
        )


def check_send(array: npt.NDArray[Any], rank: int, dst: int, size: int) -> None:
    """Raise unless `array` may be sent to `dst`."""
    check_peer("send", rank, dst, size)
    if not is_carried(array.dtype):
        known = ", ".join([*sorted(map(str, CARRIED)), BFLOAT16])
        raise DTypeError(
            f"send {rank} -> {dst}: {array.dtype} is not carried; cast to one of {known}"
        )


def check_recv(out: npt.NDArray[Any], rank: int, src: int, size: int) -> None:
    """Raise `RunError` unless a message of `src` may be received into `out`."""
    check_peer("recv", rank, src, size)
    if not (out.flags.c_contiguous and getattr(out.flags, "writeable", True)):
        raise RunError(
            f"recv {src} -> {rank}: the buffer {type_text(out)} is not C-contiguous and writeable; "
            "receive into a fresh array and copy"
        )


def check_reduced(array: npt.NDArray[Any], rank: int) -> None:
    """Raise `RunError` unless `array` is a vector that allreduce accepts."""
    if array.dtype != np.float64 or array.ndim != 1:
        raise RunError(
            f"allreduce: rank {rank} gives {type_text(array)}, but a float64 vector is summed"
        )


DIFFERENT_CALLS = (
    "rank {rank} has come to {call}, but rank 0 to {first}: all ranks make the same calls in the "
    "same order"
)


def require_same_calls(calls: Sequence[str], complaint: str = DIFFERENT_CALLS) -> None:
    """Raise `RunError` unless all ranks (calls: by rank) have come to the same call."""
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise RunError(complaint.format(rank=rank, call=call, first=calls[0]))


def require_same_lengths(sizes: Sequence[int]) -> None:
    """Raise `RunError` unless the vectors to sum (sizes: by rank) are equally long."""
    if len(set(sizes)) > 1:
        lengths = ", ".join(map(str, sizes))
        raise RunError(f"allreduce: the vectors of ranks 0..{len(sizes) - 1} have {lengths} values")


def wrong_tag(src: int, dst: int, head: int, tag: int) -> RunError:
    """Return the error for a receiver whose tag is not that of the channel's next message."""
    return RunError(
        f"channel {src} -> {dst}: the next message has tag {head}, but tag {tag} is asked for; "
        "receive a channel's messages in the order they are sent"
    )


def uneven(src: int, dst: int, sent: int, asked: int) -> RunError:
    """Return the error for a receiver that takes another number of messages than were sent."""
    return RunError(
        f"channel {src} -> {dst}: {count_text(sent, 'message')} were sent together, but {asked} "
        "are received; send and receive the same ones together"
    )


def joined_by(blocks: CollectiveLayout) -> str:
    """Describe the wait of a rank in a collective."""
    return f"{blocks.kind} with ranks {', '.join(map(str, blocks.ranks))}"


def wrong_type(src: int, dst: int, tag: int, message: str, out: str) -> RunError:
    """Return the error for a message that does not fit the receiver's buffer."""
    return RunError(
        f"channel {src} -> {dst}, tag {tag}: the message is {message}, but the receiver's buffer "
        f"is {out}; both ends must be built from one partition"
    )


def peer_failed(rank: int, failure: Failure, awaited: str, what: str) -> PeerFailed:
    """Return the error of a wait for `awaited`, in instruction `what`, ended by a failure."""
    at = f" ({what})" if what else ""
    error = PeerFailed(f"rank {rank} stopped while waiting for {awaited}{at}: {failure}")
    error.status = failure.status
    return error


def timed_out(rank: int, seconds: float, awaited: str, what: str) -> TransportTimeout:
    """Return the error of a wait for `awaited`, in instruction `what`, that took too long."""
    at = f" ({what})" if what else ""
    return TransportTimeout(
        f"rank {rank} waited more than {seconds:g} s for {awaited}{at}; "
        "look at what the peer is doing, or raise the timeout"
    )


def message_from(src: int, tag: int) -> str:
    """Describe the wait of a receiver."""
    return f"tag {tag} from rank {src}"


def taken_by(dst: int, tag: int) -> str:
    """Describe the wait of a sender."""
    return f"rank {dst} to take tag {tag}"


def failure_of(rank: int, what: str, error: BaseException) -> Failure:
    """Return the failure to announce for an exception on `rank` in instruction `what`.

    The exception gets a note with the rank and the instruction, for the traceback.
    """
    if not isinstance(error, PeerFailed):
        error.add_note(f"on rank {rank}{f', at {what}' if what else ''}")
    return Failure(rank, what, error_text(error), exit_status(error))


def error_text(error: BaseException) -> str:
    """Return the words in which other ranks hear of an error."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
