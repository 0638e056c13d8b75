"""The names that users import from `runtime`; all are loaded when the first is used."""

from runtime.backends.cpu.choice import use_blas
from runtime.backends.device.processor import limit_blas
from runtime.engine.bucket_session import BucketSession
from runtime.engine.session import Session, initialize
from runtime.frontends import chainermn
from runtime.frontends.mxnet.executor import Executor
from runtime.planning.buckets import Buckets
from runtime.planning.explain import Explanation, explain
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.lowering.lower import lower
from runtime.schedule.program import Program, Schedule
from runtime.schedule.replay import Costs, Link, check, memory_profile, simulate
from runtime.schedule.timeline import Event, Timeline
from runtime.schedule.views.breakdown import breakdown, critical_path
from runtime.training.checkpoints.sessions import load_checkpoint, save_checkpoint
from runtime.training.data.timed import TimedSentences
from runtime.transports import Cluster, ThreadCluster, launched_by_mpi, make_cluster

__all__ = [
    "SCHEDULES",
    "BucketSession",
    "Buckets",
    "Cluster",
    "Costs",
    "Event",
    "Executor",
    "Explanation",
    "Link",
    "Options",
    "Plan",
    "Program",
    "Schedule",
    "Session",
    "ThreadCluster",
    "TimedSentences",
    "Timeline",
    "breakdown",
    "chainermn",
    "check",
    "critical_path",
    "explain",
    "initialize",
    "launched_by_mpi",
    "limit_blas",
    "load_checkpoint",
    "lower",
    "make_cluster",
    "memory_profile",
    "plan",
    "save_checkpoint",
    "simulate",
    "use_blas",
]
