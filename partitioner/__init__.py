"""The partitioner: which node runs where, and what that costs.

May import symgraph; touches no array.
Start reading: base/types.py, then cutting/cut.py.
"""

from partitioner.base.chain import chain
from partitioner.base.types import Body, BodyKey, CommEdge, Partition, Placement, Topology
from partitioner.cutting.cut import cut
from partitioner.memory.memory_plan import BodyMemory, MemoryPlan, plan_memory
from partitioner.placement.group2ctx import group2ctx
from partitioner.placement.transfer import carry
from partitioner.views.report import table

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

Partition.printer = table  # `print(partition)`
