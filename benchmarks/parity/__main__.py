"""Comparison with MXNet 1.9.1: names, shapes, outputs and gradients of the same definitions.

    python -m benchmarks.parity --mxnet PYTHON [--store FILE] [NAME ...]

PYTHON has MXNet 1.9.1 (see docs/benchmarks.md). --store writes MXNet's records to FILE, which the
tests read (tests/data/mxnet.npz). The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.parity.networks import NETWORKS
from benchmarks.parity.record import differences, unpack
from benchmarks.parity.with_symgraph import record

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("--mxnet", required=True, metavar="PYTHON")
    parser.add_argument("--store", metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; known: {', '.join(NETWORKS)}")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/mxnet.npz"
        subprocess.run(
            [given.mxnet, "-m", "benchmarks.parity.with_mxnet", path, *given.names],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        if given.store:
            shutil.copy(path, given.store)
        with np.load(path) as packed:
            theirs = unpack(packed)
    wrong = 0
    for name, other in theirs.items():
        found = differences(record(NETWORKS[name]), other)
        wrong += bool(found)
        numbers = sum(a.size for a in other.arrays.values())
        print(
            f"{name:20} {len(other.arguments):3} arguments, {len(other.arrays):3} arrays of "
            f"{numbers:6,} numbers: {'equal' if not found else 'DIFFERENT'}"
        )
        for line in found:
            print(f"    {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
