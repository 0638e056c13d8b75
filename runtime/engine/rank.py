"""The rank: its arrays, the state of the step under way, and what each instruction does.

A worker (see runtime.engine.worker) binds instructions to the methods here, with their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from partitioner.base.collectives import Group
from partitioner.base.types import BodyKey, CommEdge
from runtime.backends.bodies import BoundBody, Packs, next_states
from runtime.backends.copies import copy_all
from runtime.backends.device.arrays import HOST, device, is_array
from runtime.backends.device.pinned import PinnedBuffers
from runtime.backends.device.table import CallContext
from runtime.engine.bundles import Bundle
from runtime.engine.divergence import NodeWatch
from runtime.engine.exchanges import RankExchanges
from runtime.engine.flight_record import FlightRecord
from runtime.engine.pool import Pool
from runtime.engine.stopwatch import Stopwatch
from runtime.planning.plan import Plan
from runtime.planning.step import Feeds, StepBatches
from runtime.schedule.instructions import REPLICAS, WEIGHTS, Collective, Free, Update
from runtime.transports.base import Ticket, Transport
from symgraph.core.errors import GraphError
from symgraph.core.registry import Env
from symgraph.core.types import Array, Value, name_of

NANOSECOND = Fraction(1, 1_000_000_000)


class RankResources:
    """Resources shared by workers of one rank that never run at the same time.

    Attributes:
        pools: The memory of all ranks of this process.
    """

    def __init__(self, rank: int = 0) -> None:
        self.pool = Pool()
        self.pools = {rank: self.pool}
        self.context = CallContext()
        self.flight = FlightRecord()

    @classmethod
    def of_ranks(cls, ranks: Iterable[int]) -> dict[int, RankResources]:
        """Make the resources of all ranks of this process."""
        made = {rank: cls(rank) for rank in ranks}
        pools = {rank: resources.pool for rank, resources in made.items()}
        for resources in made.values():
            resources.pools = pools
        return made


class Updater(Protocol):
    """The end of a training step; see runtime.engine.optimizer_step."""

    @property
    def groups(self) -> Sequence[Group]:
        """The groups of ranks whose collectives it starts."""
        ...

    def complete(self, rank: Rank, names: Sequence[str]) -> None:
        """Start to sum the gradients of these replicas, which a run has completed."""
        ...

    def sum_replicas(self, rank: Rank) -> None:
        """Finish the sums of replicas' gradients."""
        ...

    def reduce(self, rank: Rank) -> None:
        """Exchange norms and losses with all ranks."""
        ...

    def update(self, rank: Rank, stage: int) -> None:
        """Update the parameters of a stage."""
        ...

    def spread_weights(self, rank: Rank) -> None:
        """Give all replicas the weights that each has updated a part of."""
        ...


class Rank:
    """One rank of a plan: the state that its instructions read and write.

    After a step, `outputs` has the wanted outputs made here (one array per micro-batch), and
    `grads` the summed gradients; the next step overwrites both.
    """

    #: The transport of the current step.
    transport: Transport
    #: The exchanges of the schedules that are bound.
    exchanges: RankExchanges

    def __init__(
        self,
        plan: Plan,
        rank: int,
        arrays: Mapping[str, Array],
        wanted: Collection[Value] | None = None,
        *,
        parts: StepBatches | None = None,
        resources: RankResources | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Prepare a rank's state; nothing is bound yet.

        Args:
            plan: The plan; for a step of several batches that of the first one, whose names the
                outputs have.
            rank: The number of the rank.
            arrays: Parameters and auxiliary states that live on this rank, by name. They are read,
                and auxiliary states are written, in place.
            wanted: The outputs to keep; by default all.
            parts: The plans of the batches of a step; by default one batch of `plan`.
            resources: Resources shared with other workers of this rank and these arrays.
            stopwatch: Times each call of a run.
        """
        self.plan = plan
        self.rank = rank
        self.arrays = arrays
        self.parts = StepBatches((plan,)) if parts is None else parts
        self.wanted = frozenset(plan.outputs if wanted is None else wanted)
        self.resources = RankResources(rank) if resources is None else resources
        self.packs = Packs()
        self.stopwatch = stopwatch
        self.device = device(plan.devices[rank])
        self.memory = HOST.bytes(0)  # the arena
        self.outputs: dict[Value, list[Any]] = {}
        self.grads: dict[str, Array] = {}
        self.states: dict[str, list[Array]] = {}  # the next step begins with these
        self.step_count = 0
        self.updater: Updater | None = None  # the current step's
        self.watch: NodeWatch | None = None  # looks at each node's values
        self._kept: dict[tuple[Value, int], Array] = {}  # the arrays of `outputs`
        self._before: dict[str, list[Array]] = {}  # copies of what a step begins with, by name
        self._tickets: dict[tuple[BodyKey, int], list[tuple[Ticket, CommEdge]]] = {}
        self._feeds: Sequence[Feeds] = ()
        self._early: list[dict[str, Array]] = []
        self._pinned = PinnedBuffers()
        self._env = Env()

    @property
    def fixed(self) -> dict[str, Array]:
        """The arrays that instructions use in place: those in C order."""
        return {name: a for name, a in self.arrays.items() if a.flags.c_contiguous}

    @property
    def context(self) -> CallContext:
        """The values that captured calls of this rank's device read."""
        return self.resources.context

    @property
    def kept_bytes(self) -> int:
        """Bytes of the outputs that are kept, and of what a step began with."""
        before = [array for arrays in self._before.values() for array in arrays]
        return sum(a.nbytes for a in [*self._kept.values(), *before])

    def start(self, feeds: Feeds | Sequence[Feeds], *, train: bool, seed: int, step: int) -> None:
        """Prepare for a step and drop the state of an earlier one."""
        self._tickets.clear()
        self.exchanges.reset()
        self.outputs = {}
        self.step_count = step
        self._env = Env(self.device.xp, train, seed, step, 0)
        self.feed(feeds)

    def feed(self, feeds: Feeds | Sequence[Feeds]) -> None:
        """Set the values of fed variables for the next runs.

        Args:
            feeds: The values for the whole batch, or for each of the step's batches.

        Raises:
            GraphError: A value is missing, no array, or of another shape or dtype.
        """
        batches = [feeds] if isinstance(feeds, Mapping) else feeds
        for plan, values in zip(self.parts.plans, batches, strict=True):
            for name, (type_, _) in plan.feeds.items():
                array = values.get(name)
                if array is None:
                    raise GraphError(f"no value is given for {name!r} of {type_}")
                if not is_array(array):
                    raise GraphError(f"{name!r} is given a {type(array).__name__}, not an array")
                if (array.shape, name_of(array.dtype)) != (type_.shape, type_.dtype):
                    raise GraphError(
                        f"{name!r} of {type_} is given {array.dtype}{list(array.shape)}"
                    )
        self._feeds = batches
        self._early = self.parts.early(batches)

    def start_from(self, states: dict[str, list[Array]]) -> None:
        """Start the next step from these states (one array per micro-batch), others from zeros."""
        self.states = states

    def clear_states(self, last: int) -> None:
        """Set the states of the last samples of the next step to zero; `last`: their number."""
        with self.device.use():
            for name, parts in self.states.items():
                axis, left = self.plan.feeds[name].axis, last
                for part in reversed(parts):
                    kept = max(0, part.shape[axis] - left)
                    left -= part.shape[axis] - kept
                    part[(slice(None),) * axis + (slice(kept, None),)] = 0

    def carry_states(self) -> None:
        """Start the next step from the states that this step computed."""
        states = self.plan.states.items()
        self.states = {name: self.outputs[v] for name, v in states if v in self.outputs}

    def remember(self) -> None:
        """Keep what the next step begins with and overwrites: states, and auxiliary states."""
        pairs = [(name, self.states[name]) for name in self.states]
        pairs += [(name, [self.arrays[name]]) for name in self.auxiliary]
        with self.device.use():
            for name, arrays in pairs:
                if name not in self._before:
                    self._before[name] = [self.device.xp.empty_like(a) for a in arrays]
            copies = [zip(self._before[n], arrays, strict=True) for n, arrays in pairs]
            copy_all(self.device, chain.from_iterable(copies))

    def recall(self) -> None:
        """Return to what the last step began with."""
        self.states = {name: self._before[name] for name in self.states}
        with self.device.use():
            names = self.auxiliary
            copy_all(self.device, [(self.arrays[n], self._before[n][0]) for n in names])

    @cached_property
    def auxiliary(self) -> list[str]:
        """The auxiliary states that training steps change on this rank."""
        bodies = [
            body
            for cut in self.parts.partitions.values()
            for key, body in cut.bodies.items()
            if cut.rank(key) == self.rank
        ]
        return list(dict.fromkeys(name for body in bodies for name, _ in next_states(body)))

    def gradient(self, name: str) -> Array:
        """Return the summed gradient of a variable that lives on this rank."""
        return self.grads[name]

    def read(self, arrays: Sequence[Array] = ()) -> list[Array]:
        """Wait for this rank's work and bring some of its arrays to the host.

        Raises:
            IndexError: An id was out of range, which calls on a GPU can only note.
        """
        noted = self.context.errors
        if noted is None:
            return self.device.read(arrays)
        count = len(noted.slots)
        found = self.device.read([*noted.slots, *arrays])
        noted.check(found[:count])
        return found[count:]

    # -- instructions ------------------------------------------------------------------------

    def run_body(self, mb: int, body: BoundBody, timed: BoundBody | None = None) -> None:
        """Run a body on a micro-batch, and add up the gradients that it completes.

        timed: the same with stamps, for when the stopwatch is on.
        """
        if timed is not None and self.stopwatch is not None and self.stopwatch.timing.on:
            body = timed
        self._feed([(array, self._fed(name, mb)) for name, array in body.fed])
        self.context.set(self._env._replace(sample=self.parts.mbs[mb].sample))
        if self.watch is not None:
            self.watch.mb = mb
        body.run()
        kept = [pair for value, array in body.results for pair in self._kept_as(value, mb, array)]
        if self._env.train:
            kept += [(self.arrays[name], array) for name, array in body.states]
        copy_all(self.device, kept)

    def _feed(self, pairs: Sequence[tuple[Array, Array]]) -> None:
        """Copy what a run is fed; values of the host may change as soon as this returns."""
        there: list[tuple[Array, Array]] = []
        for target, value in pairs:
            if self.device.holds(value):
                there.append((target, value))
            else:
                self._pinned.feed(target, value)
        copy_all(self.device, there)

    def _fed(self, name: str, mb: int) -> Array:
        """Return the value of a variable for one micro-batch."""
        part, kind, start, _ = self.parts.mbs[mb]
        early = self._early[part].get(name)
        if early is not None:
            return early
        state = self.states.get(name)
        if state is not None:
            return state[mb]
        feed = self.parts.plans[part].feeds.get(name)
        if feed is None:
            array = self.arrays.get(name)
            return self._feeds[part][name] if array is None else array
        at = (slice(None),) * feed.axis + (slice(start, start + kind.size),)
        return self._feeds[part][name][at]

    def _kept_as(self, value: Value, mb: int, array: Array) -> Iterator[tuple[Array, Array]]:
        """Yield a result's array in `outputs`, if it is wanted, and the result."""
        kind = self.parts.mbs[mb].kind
        value = self.parts.outputs[kind].get(value, value)
        if value in self.wanted:
            kept = self._kept.get((value, mb))
            if kept is None:
                kept = self._kept[value, mb] = self.device.xp.empty_like(array)
            self.outputs.setdefault(value, [None] * len(self.parts.mbs))[mb] = kept
            yield kept, array

    def complete(self, run: Callable[[], None], names: Sequence[str]) -> None:
        """Execute a run that completes these gradients of replicas."""
        run()
        if self.updater is not None:
            self.updater.complete(self, names)

    def send(self, bundle: Bundle) -> None:
        """Start to send messages; `free` waits for the end."""
        ticket = self.transport.send_all(bundle.parcel, bundle.peer, bundle.tags)
        for maker, edge in bundle.makers.items():
            self._tickets.setdefault(maker, []).append((ticket, edge))

    def recv(self, bundle: Bundle) -> None:
        """Wait for messages."""
        self._waiting_for(*bundle.first, bundle.peer)
        self.transport.recv_all(bundle.parcel, bundle.peer, bundle.tags)

    def take(self, edge: CommEdge, array: Array, mb: int) -> None:
        """Wait for a message of an exchange."""
        partition = self.parts.partitions[self.parts.mbs[mb].kind]
        self._waiting_for(edge, mb, partition.rank(edge.src))
        self.exchanges.take(edge.tag, mb, array)

    def _waiting_for(self, edge: CommEdge, mb: int, source: int) -> None:
        what = f"R{edge.tag}.{mb} (step {self.step_count}): {edge.value} of rank {source}"
        self.transport.waiting_for(what)

    def free(self, key: BodyKey, mb: int) -> None:
        """Wait until everything that a body sends has been sent."""
        for ticket, edge in self._tickets.pop((key, mb), ()):
            if not ticket.done():
                where = f"{Free(*key[:2], mb, key.segment)} (step {self.step_count})"
                self.transport.waiting_for(f"{where}: {edge.value}")
                ticket.wait()

    def finish(self, instruction: Update | Collective) -> None:
        """Execute an instruction of the step's end, if there is an updater."""
        if self.updater is not None:
            if isinstance(instruction, Update):
                self.updater.update(self, instruction.stage)
            elif instruction.tag == REPLICAS:
                self.updater.sum_replicas(self)
            elif instruction.tag == WEIGHTS:
                self.transport.waiting_for(f"{instruction} (step {self.step_count}): the weights")
                self.updater.spread_weights(self)
            else:
                self.transport.waiting_for(f"C (step {self.step_count}): the norms and losses")
                self.updater.reduce(self)
