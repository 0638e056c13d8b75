"""The runtime: schedules, their proof and simulation, and the workers that run them."""

from runtime.executor import Executor
from runtime.instructions import Schedule
from runtime.lower import lower
from runtime.pipeline import Options, Plan, plan
from runtime.replay import Costs, check, simulate
from runtime.schedules import SCHEDULES
from runtime.session import Session, initialize
from runtime.timeline import Event, Timeline
from runtime.transports import ThreadCluster, make_cluster

__all__ = [
    "SCHEDULES",
    "Costs",
    "Event",
    "Executor",
    "Options",
    "Plan",
    "Schedule",
    "Session",
    "ThreadCluster",
    "Timeline",
    "check",
    "initialize",
    "lower",
    "make_cluster",
    "plan",
    "simulate",
]
