"""The partitioner: which node runs where, and what that costs. No arrays here."""

from partitioner.carry import carry
from partitioner.chain import chain
from partitioner.cut import cut
from partitioner.memory import BodyMemory, MemoryPlan, plan_memory
from partitioner.place import group2ctx
from partitioner.types import Body, BodyKey, CommEdge, Partition, Placement, Topology

__all__ = [
    "Body",
    "BodyKey",
    "BodyMemory",
    "CommEdge",
    "MemoryPlan",
    "Partition",
    "Placement",
    "Topology",
    "carry",
    "chain",
    "cut",
    "group2ctx",
    "plan_memory",
]
