"""The partitioner: which node runs where, and what that costs. No arrays here."""

from partitioner.cut import cut
from partitioner.memory import InFlight, StageMemory, plan_memory
from partitioner.place import group2ctx
from partitioner.types import Body, BodyKey, CommEdge, Partition, Placement

__all__ = [
    "Body",
    "BodyKey",
    "CommEdge",
    "InFlight",
    "Partition",
    "Placement",
    "StageMemory",
    "cut",
    "group2ctx",
    "plan_memory",
]
