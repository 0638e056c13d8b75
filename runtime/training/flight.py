"""Where a training run writes its flight records, and what they say of the run."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from runtime.engine.flight_record import FlightRecorder
from runtime.transports import Cluster
from runtime.transports.versions import versions
from symgraph.app.config import Config

FOLDER = "flight"  # below the checkpoints'


def flight_recorder(config: Config, cluster: Cluster) -> FlightRecorder:
    """Return the recorder of a run on a cluster; all processes must call this.

    Its folder is below that of the checkpoints, or else the system's temporary one of each host.
    """
    run = cluster.run(lambda transport: transport.exchange(secrets.token_hex(4)))[0][0]
    if config.checkpoint is not None:
        folder = Path(config.checkpoint.directory, FOLDER)
    else:
        folder = Path(_temporary_folder(), f"symgraph-flight-{run}")
    facts = {
        "run": run,
        "devices": list(config.devices),
        "versions": dict(versions()),
    }
    return FlightRecorder(cluster, folder, facts)


def _temporary_folder() -> str:
    """Return the system's temporary folder, or its name if it is not writable: a run needs none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return os.environ.get("TMPDIR", "/tmp")
