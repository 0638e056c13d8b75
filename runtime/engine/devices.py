"""Devices: where the arrays of a plan's variables lie, and the error for a full device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from warnings import warn

from runtime.backends.device.arrays import HOST, Device, device, gpu_memory, is_on_gpu, require
from runtime.backends.device.processor import host_memory
from runtime.planning.plan import Plan
from symgraph.core.context import Context
from symgraph.core.errors import GraphError, LimitError
from symgraph.core.types import Array, TensorType
from symgraph.core.units import bytes_text


def require_devices(plan: Plan) -> None:
    """Raise PlacementError for the first of a plan's devices that this machine lacks."""
    for context in plan.devices:
        require(context)


def require_memory(plan: Plan, ranks: Collection[int]) -> None:
    """Raise LimitError for a GPU of these ranks that is too small for its part of the plan.

    Of a host that is too small there is a warning alone: part of its memory may lie on a disk.
    """
    on_host = 0
    for rank in ranks:
        context, needed = plan.devices[rank], plan.memory[rank].peak
        if context.kind == "cpu":
            on_host += needed
            continue
        _, whole = gpu_memory(context)
        if needed > whole:
            raise _too_small(plan, rank, f"has {bytes_text(whole)} of memory")
    if on_host > host_memory():
        warn(
            f"the plan needs {bytes_text(on_host)} of memory, and this host has "
            f"{bytes_text(host_memory())}, so the system may end the program: see the table of "
            "`symgraph plan`, and set `partition.memory`",
            stacklevel=2,
        )


def gpus(plan: Plan) -> list[Device]:
    """Return the GPUs of a plan, each once."""
    devices = map(device, plan.devices)
    return [d for d in dict.fromkeys(devices) if not d.is_host]


def device_of(plan: Plan, variable: str) -> Device:
    """Return the device of a forward variable."""
    return device(plan.device_of(variable))


class ArrayPlacement:
    """The devices of a bound symbol's arrays: each lies on the device of its variable.

    The array of a parameter in shards or replicas is whole, on the host.
    """

    def __init__(self, plan: Plan, default: Context) -> None:
        """Take the device of variables that no operator reads as `default`."""
        self._plan, self._default = plan, default
        self._unsplit = {*plan.parameters} - {*plan.shards}
        self._split = {shard.parameter for shard in plan.shards.values()}

    def of(self, name: str) -> Device:
        """Return the device of a variable's array."""
        return HOST if name in self._split else device(self.context(name))

    def context(self, name: str) -> Context:
        """Return the device that a variable is placed on."""
        if name not in self._unsplit:
            return self._default
        return self._plan.device_of(name)

    def zeros(self, types: Mapping[str, TensorType]) -> dict[str, Array]:
        """Make arrays of zeros, each on its device; LimitError if there is no room for them."""
        arrays = {}
        for name, (shape, dtype) in types.items():
            rank = self._plan.rank_of(name) if name in self._unsplit else 0
            with filling(self._plan, rank, self.of(name)) as target:
                arrays[name] = target.xp.zeros(shape, dtype)
        return arrays

    def require(self, what: str, arrays: Mapping[str, Array]) -> None:
        """Check that arrays lie on the devices of their variables.

        Args:
            what: Whose arrays they are, for the error.
            arrays: The arrays by variable.

        Raises:
            GraphError: An array lies elsewhere.
        """
        for name, array in arrays.items():
            target = self.of(name)
            if not target.holds(array):
                actual: Any = array.device
                lies = f"on GPU {actual.id}" if is_on_gpu(array) else "on the host"
                wanted = "the host" if target.is_host else str(self.context(name))
                raise GraphError(
                    f"{what}: the array of {name!r} lies {lies}, but its variable is on {wanted}, "
                    "and arrays are used and not copied: create it there, or let simple_bind make "
                    "it and copy_params_from fill it"
                )


# -- memory --------------------------------------------------------------------------------------


@contextmanager
def filling(plan: Plan, rank: int, target: Device | None = None) -> Iterator[Device]:
    """Use a device, by default the rank's, for new arrays inside the block, and wait for it.

    Raises:
        LimitError: The device is too small; the error shows what is planned.
    """
    context = plan.devices[rank]
    target = device(context) if target is None else target
    try:
        with target.use():
            yield target
            target.finish()
    except MemoryError as error:
        raise no_memory(plan, rank, error) from error


def no_memory(plan: Plan, rank: int, error: BaseException) -> LimitError:
    """Make the error for a device that is full."""
    return _too_small(plan, rank, f"has no memory left ({error})")


def _too_small(plan: Plan, rank: int, what: str) -> LimitError:
    context, memory = plan.devices[rank], plan.memory[rank]
    return LimitError(
        f"{context} {what}; the plan gives it "
        f"{bytes_text(memory.parameters)} of parameters, {bytes_text(memory.optimizer)} of "
        f"optimizer arrays and {bytes_text(memory.peak)} in all: see the table of `symgraph plan`, "
        "and set `partition.memory` to what is available"
    )
