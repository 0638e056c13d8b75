"""Checkpoints of a session that a program steps by itself."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.engine.session import Session
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.saves import Saves, locked, newest_whole
from runtime.training.checkpoints.state import restore
from symgraph.core.errors import RunError


def save_checkpoint(session: Session, folder: str | os.PathLike[str], *, keep: int = 2) -> Path:
    """Save a training session: parameters, optimizer, states and the number of steps.

    Every process of an MPI run makes the call, and all share the folder. The checkpoint has its
    name once all of it is on the disk; older ones are removed only then. Its tensors are in files
    of safetensors under the names of the parameters, whole where they are in shards.

    Args:
        session: The session, between two steps.
        folder: The folder of all checkpoints of a run, which is made if it is not there.
        keep: The number of newest checkpoints that remain.

    Returns:
        The path of the checkpoint, such as runs/a/step-00000500.

    Raises:
        ConfigError: The folder is not writable, or another run writes into it.
        RunError: The session does not train, or a file cannot be written.
    """
    if not session.trains:
        raise RunError("the session has no optimizer, so it changes nothing that could be saved")
    kept = CheckpointFolder(Path(folder))
    if 0 in session.cluster.ranks:
        kept.make()
    saves = Saves(session, kept, max(1, keep), asynchronous=False)
    with locked(session.cluster, kept):
        try:
            saves.begin({})
        finally:
            saves.close()
    return kept.named(session.steps)


def load_checkpoint(
    session: Session, folder: str | os.PathLike[str], *, fallback: bool = False
) -> Path | None:
    """Set a session to the newest checkpoint of a folder, wherever its parameters are now.

    Placement, schedule, transport and devices may differ from those of the session that saved it.
    With the same number of micro-batches and the same batches, training goes on with the same bits.
    A session without an optimizer takes the parameters and states only.

    Args:
        session: The session; `steps` is that of the checkpoint afterwards.
        folder: The folder of all checkpoints of a run.
        fallback: Whether to take the newest whole checkpoint if newer ones are damaged; these are
            set aside.

    Returns:
        The path of the checkpoint; None if there is none, which changes nothing.

    Raises:
        ConfigError: The newest checkpoint is damaged, or of another network or optimizer, or
            another run writes into the folder.
    """
    kept = CheckpointFolder(Path(folder))
    with locked(session.cluster, kept):
        path = newest_whole(session.cluster, kept, fallback=fallback)
        if path is not None:
            restore(session, path)
    return path
