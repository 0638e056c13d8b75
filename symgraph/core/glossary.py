"""What the columns of tables mean: one word has one meaning, and stands below each table."""

from __future__ import annotations

from collections.abc import Sequence

# Names of columns that do not explain themselves -> what they hold.
MEANING = {
    # partitions and memory
    "segments": "parts of the time steps",
    "nodes F": "forward operators",
    "nodes B": "backward operators",
    "nodes I": "operators of input gradients",
    "nodes W": "operators of weight gradients",
    "flops": "operations",
    "work": "operations of a step",
    "optimizer": "its states",
    "scratch": "workspace of kernels, and packed weights",
    "gradients": "sums over micro-batches",
    "activations": "what runs keep for later ones",
    "transient": "messages under way and what only one run needs",
    "peak": "all of these at the worst moment",
    "at": "the run of that moment: stage, phase, micro-batch and, after a dot, time segment",
    "sends": "messages to other ranks",
    "bytes sent": "in these messages",
    # what planning and searching tried
    "slowest device": "seconds that it needs for a micro-batch",
    "at least": "no such plan can be faster",
    "gap": "how far it is above that",
    "steps a segment": "time steps that run at a stretch",
    "forward again": "stages that run forward again instead of keeping activations",
    "peak memory": "of the rank that holds most",
    "messages": "bytes sent in a step",
    # the time of ranks
    "in flight": "the most micro-batches begun and not finished",
    "compute": "in runs and updates",
    "communication": "receiving messages",
    "warm-up": "waiting before the first run",
    "drain": "waiting after the last run",
    "imbalance": "waiting between runs for what is not sent yet",
    "dispatch": "between instructions, and posting messages",
    "between steps": "from the end of a step to the start of the next",
    "bubble": "share of all ranks' time in which nothing is computed",
    # operators and bodies
    "body": "a stage and a phase",
    "operator": "_: made by symgraph, most for gradients; (...): work between operators",
    "calls": "in a step",
    "runs": "in a step",
    "median": "of one of them",
    "spread": "from the lower to the upper quartile",
    "a step": "all of them together",
    "share": "of all computing",
    "of roofline": "speed beside the machine's best for such operations and bytes",
    "bytes": "read and written in a step",
    "error": "of the prediction",
    "error a step": "predicted minus measured, all runs; <- above 5% of the step",
    # candidates and machines
    "tokens/s": "samples times time steps, in a second",
    "of the first": "pace beside the first candidate's",
    "sent a step": "bytes of all messages",
    "a call": "time of a call that computes nothing",
    "shared": "whether transfers at the same time share the bandwidth",
    # solutions of workload files
    "load ms": "computing and messages",
    "in ms": "receiving",
    "out ms": "sending",
    "of bottleneck": "load beside the largest",
}


def column_note(head: Sequence[str]) -> str:
    """Return what the columns of a table mean, as far as their names do not say it.

    >>> column_note(("rank", "drain", "spread"))
    'drain: waiting after the last run; spread: from the lower to the upper quartile'
    """
    return "; ".join(f"{name}: {MEANING[name]}" for name in head if name in MEANING)
