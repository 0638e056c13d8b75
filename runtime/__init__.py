"""The runtime: schedules, their proof and simulation, and the workers that run them."""

from runtime.breakdown import breakdown, critical_path
from runtime.bucketing import Buckets, BucketSession
from runtime.executor import Executor
from runtime.lower import lower
from runtime.pipeline import Options, Plan, plan
from runtime.program import Program, Schedule
from runtime.replay import Costs, Link, check, memory_profile, simulate
from runtime.schedules import SCHEDULES
from runtime.session import Session, initialize
from runtime.timeline import Event, Timeline
from runtime.transports import ThreadCluster, make_cluster

__all__ = [
    "SCHEDULES",
    "BucketSession",
    "Buckets",
    "Costs",
    "Event",
    "Executor",
    "Link",
    "Options",
    "Plan",
    "Program",
    "Schedule",
    "Session",
    "ThreadCluster",
    "Timeline",
    "breakdown",
    "check",
    "critical_path",
    "initialize",
    "lower",
    "make_cluster",
    "memory_profile",
    "plan",
    "simulate",
]
