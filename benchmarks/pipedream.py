"""PipeDream's published configurations beside our pipelines of replicated stages, by its own model.

    python -m benchmarks.pipedream --profiles FOLDER

FOLDER holds PipeDream's profiles as NAME.txt: its repository's profiler/*/profiles/NAME/graph.txt
(vgg16, resnet50, alexnet, gnmt for GNMT-8 and gnmt_large for GNMT-16; there is none of S2VT). What
is missing is left out. Configurations are those of the paper (Narayanan et al., SOSP 2019): 15-1 is
one stage on 15 devices and one on the last, `straight` a stage per device. They are cut where the
model finds them fastest, on one level of devices with the network's bandwidth. Ours are found on
that level, and on the two levels that the machine has.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from partitioner.solve.profile_files import replicated_layers
from partitioner.solve.replicated import Layers, Level, replicate, timed
from symgraph.app.console import Console
from symgraph.core.errors import ConfigError

PCIE, NVLINK, SLOW, FAST = 10e9, 30e9, 10e9 / 8, 25e9 / 8  # bytes per second
MOST_SETS = 2_000  # down-sets of the layers for which two levels are solved


class Published(NamedTuple):
    """A configuration of the paper."""

    profile: str
    hosts: int
    devices: int
    replicas: tuple[int, ...]


STRAIGHT = (1,) * 16
PUBLISHED = (
    Published("vgg16", 4, 4, (15, 1)),
    Published("vgg16", 2, 8, (15, 1)),
    Published("resnet50", 4, 4, (16,)),
    Published("resnet50", 2, 8, (16,)),
    Published("alexnet", 4, 4, (15, 1)),
    Published("alexnet", 2, 8, (15, 1)),
    Published("gnmt", 3, 4, STRAIGHT[:12]),
    Published("gnmt", 2, 8, (16,)),
    Published("gnmt_large", 4, 4, STRAIGHT),
    Published("gnmt_large", 2, 8, STRAIGHT),
)


def row(layers: Layers, case: Published) -> tuple[str, ...]:
    """Return the row of a configuration."""
    inside, outside = (PCIE, SLOW) if case.devices == 4 else (NVLINK, FAST)
    theirs = timed(layers, outside, case.replicas)
    ours = replicate(layers, [Level(case.hosts * case.devices, outside)])
    two = "-", "-"
    if len(layers.family) <= MOST_SETS:
        best = replicate(layers, [Level(case.devices, inside), Level(case.hosts, outside)])
        two = str(best), f"{best.seconds * 1e3:.3f} ms"
    return (
        case.profile,
        f"{case.hosts}x{case.devices}",
        "straight" if len(case.replicas) > 2 else str(theirs),
        f"{theirs.seconds * 1e3:.3f} ms",
        str(ours),
        f"{ours.seconds * 1e3:.3f} ms",
        f"{ours.seconds / theirs.seconds:.3f}",
        *two,
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pipedream",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profiles", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    known: dict[str, Layers] = {}
    for name in dict.fromkeys(case.profile for case in PUBLISHED):
        path = options.profiles / f"{name}.txt"
        if path.is_file():
            known[name] = replicated_layers(path.read_text(encoding="utf-8"))
        else:
            print(f"no {path}: left out", file=sys.stderr)
    if not known:
        raise ConfigError(f"{options.profiles} holds none of PipeDream's profiles")
    head = ("", "", "theirs", "", "ours", "", "ours / theirs", "ours, two levels", "")
    rows = [row(known[case.profile], case) for case in PUBLISHED if case.profile in known]
    Console(sys.stdout).table("a minibatch by PipeDream's model", head, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
