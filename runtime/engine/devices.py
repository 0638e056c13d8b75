"""Homes: the devices on which a plan's variables live, and what is said when one is full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runtime.backends.device.arrays import HOST, Device, device, is_on_gpu
from runtime.planning.plan import Plan
from symgraph.core.context import Context
from symgraph.core.errors import GraphError, LimitError
from symgraph.core.types import Array, TensorType
from symgraph.core.units import bytes_text


def rank_devices(plan: Plan) -> list[Device]:
    """The device of each rank."""
    return [device(context) for context in plan.partition.placement.devices]


def gpus(plan: Plan) -> list[Device]:
    """The GPUs among them, each once."""
    return [d for d in dict.fromkeys(rank_devices(plan)) if not d.is_host]


def home(plan: Plan, variable: str) -> Device:
    """The device of a forward variable."""
    return device(plan.partition.placement.devices[plan.rank_of(variable)])


class ArrayPlacement:
    """Where the arrays of a bound symbol lie: each on the device of its variable.

    One that is in shards or replicas is whole, on the host.
    """

    def __init__(self, plan: Plan, default: Context) -> None:
        """default: where a variable lives that no operator reads."""
        self._plan, self._default = plan, default
        self._alone = {*plan.parameters} - {*plan.shards}
        self._split = {shard.parameter for shard in plan.shards.values()}

    def of(self, name: str) -> Device:
        """The device of a variable's array."""
        return HOST if name in self._split else device(self._context(name))

    def _context(self, name: str) -> Context:
        if name not in self._alone:
            return self._default
        return self._plan.partition.placement.devices[self._plan.rank_of(name)]

    def zeros(self, types: Mapping[str, TensorType]) -> dict[str, Array]:
        """Arrays of zeros, each at home; LimitError if there is no room for them."""
        made = {}
        for name, (shape, dtype) in types.items():
            here = self.of(name)
            rank = self._plan.rank_of(name) if name in self._alone else 0
            with here.use(), within_memory(self._plan, rank):
                made[name] = here.xp.zeros(shape, dtype)
                here.finish()
        return made

    def require(self, what: str, arrays: Mapping[str, Array]) -> None:
        """GraphError for an array that lies elsewhere. what: whose they are, in words."""
        for name, array in arrays.items():
            here = self.of(name)
            if not here.holds(array):
                there: Any = array.device
                lies = f"on GPU {there.id}" if is_on_gpu(array) else "on the host"
                wanted = "the host" if here.is_host else str(self._context(name))
                raise GraphError(
                    f"{what}: the array of {name!r} lies {lies}, but its variable is on {wanted}, "
                    "and arrays are used and not copied: make it there, or let simple_bind make "
                    "it and copy_params_from fill it"
                )


# -- memory --------------------------------------------------------------------------------------


@contextmanager
def within_memory(plan: Plan, rank: int) -> Iterator[None]:
    """Let memory that a rank's device has not be a LimitError; see `no_memory`."""
    try:
        yield
    except MemoryError as error:
        raise no_memory(plan, rank, error) from error


def no_memory(plan: Plan, rank: int, error: BaseException) -> LimitError:
    """What a rank's device should have had room for, as planned."""
    context, memory = plan.partition.placement.devices[rank], plan.memory[rank]
    return LimitError(
        f"{context} has no memory left ({error}); the plan gives it "
        f"{bytes_text(memory.parameters)} of parameters, {bytes_text(memory.optimizer)} of "
        f"optimizer arrays and {bytes_text(memory.peak)} in all: see the table of --plan, and let "
        "`partition.memory` be what there is"
    )
