"""Results: the contenders' step times in comparison, as a table and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from benchmarks.peers import sgemm_peak
from benchmarks.peers.contenders import title
from benchmarks.peers.protocol import CONFIGS
from symgraph.core.units import bytes_text, seconds_text

REFERENCE = (
    "symgraph-2",
    "symgraph-1x2",
    "symgraph-1",
    "symgraph-gpu",
)  # the contenders to compare with
QUIET = 0.05  # share of the CPUs that others may use without affecting the figures
COLUMNS = (
    "config",
    "contender",
    "a second",
    "quartiles",
    "step",
    "symgraph is",
    "GFLOP/s",
    "of peak",
    "peak memory",
)


@dataclass
class Result:
    """The results of one contender on one configuration; seconds holds its steps by round."""

    seconds: list[list[float]] = field(default_factory=list)
    peak_bytes: int = 0
    start_seconds: float = 0.0
    versions: str = ""
    choice: str = ""
    blas: Sequence[str] = ()

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Return the quartiles of the seconds of all its steps."""
        steps = [s for turn in self.seconds for s in turn]
        if len(steps) == 1:
            return steps[0], steps[0], steps[0]
        low, middle, high = quantiles(steps, n=4, method="inclusive")
        return low, middle, high


def ratio(reference: Result, other: Result) -> float:
    """Return how many times faster the reference is: the median over the rounds.

    Medians are compared round by round, so a temporary slowdown of the machine affects both.
    """
    pairs = zip(reference.seconds, other.seconds, strict=False)
    return median(median(theirs) / median(ours) for ours, theirs in pairs)


def peak_gflops(result: Result, *, gpu: bool = False) -> float:
    """Return the sgemm peak: the median over rounds of the fastest products."""
    flops = sgemm_peak.GPU_FLOPS if gpu else sgemm_peak.FLOPS
    return flops / median(map(min, result.seconds)) / 1e9


def reference_of(results: Mapping[str, Result]) -> str | None:
    return next((name for name in REFERENCE if name in results), None)


def operations(config: str, *, forward: bool) -> int:
    """Count the operations of a step's products; each has two more in the backward pass."""
    return CONFIGS[config].flops * (1 if forward else 3)


def figures(
    config: str, results: Mapping[str, Result], peak: float, *, forward: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the figures of each contender by name, in plain types; peak is in GFLOP/s."""
    size = CONFIGS[config]
    reference = reference_of(results)
    found = {}
    for name, result in results.items():
        low, middle, high = result.quartiles
        gflops = operations(config, forward=forward) / middle / 1e9
        found[name] = {
            "title": title(name, size.kind),
            "rate": size.count / middle,
            "quartiles": [size.count / high, size.count / low],
            "step_seconds": middle,
            "reference_ratio": reference and ratio(results[reference], result),
            "gflops": gflops,
            "share_of_peak": gflops / peak,
            "peak_bytes": result.peak_bytes,
            "start_seconds": result.start_seconds,
            "versions": result.versions,
            "choice": result.choice,
            "blas": list(result.blas),
            "seconds": result.seconds,
        }
    return found


def rows(
    config: str, found: Mapping[str, Mapping[str, Any]], peak: float, *, forward: bool = False
) -> list[list[object]]:
    """Return the rows below COLUMNS; the last one is the limit set by the sgemm peak."""
    size = CONFIGS[config]
    made: list[list[object]] = []
    for facts in found.values():
        low, high = map(rate_text, facts["quartiles"])
        times = facts["reference_ratio"]
        made.append(
            [
                config,
                facts["title"],
                f"{rate_text(facts['rate'])} {size.unit}",
                f"{low} - {high}",
                seconds_text(facts["step_seconds"]),
                "-" if times is None else f"{times:.2f} x as fast",
                f"{facts['gflops']:.0f}",
                f"{facts['share_of_peak']:.0%}",
                bytes_text(facts["peak_bytes"]),
            ]
        )
    limit = peak * 1e9 / operations(config, forward=forward)
    made.append(
        [
            config,
            "limit: products at the sgemm peak",
            f"{rate_text(size.count * limit)} {size.unit}",
            "-",
            seconds_text(1 / limit),
            "-",
            f"{peak:.0f}",
            "100%",
            "-",
        ]
    )
    return made


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def notes(found: Mapping[str, Any]) -> Iterator[str]:
    """List what the table does not show: machine, versions, kernels, checks, missing contenders.

    found is the whole record, as `--json` writes it.
    """
    about = found["machine"]
    yield f"{about['cpu']}, {about['cpus']} CPUs; commit {about['commit']}, {about['time']}"
    dropped = ", ".join(f"{n}={v}" for n, v in about["dropped"].items()) or "nothing"
    yield f"dropped from the shell's environment for everybody: {dropped}"
    versions: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for facts in found["configs"].values():
        versions[f"numpy's BLAS {', '.join(facts['peak_blas'])}"]["sgemm peak"] = None
        for name, said in facts["contenders"].items():
            blas = f"; BLAS {', '.join(said['blas'])}" if said["blas"] else ""
            versions[said["versions"] + blas][name] = None
    for text, names in versions.items():
        yield f"{text}: {' '.join(names)}"
    for config, facts in found["configs"].items():
        busy = max(facts["others_busy"], default=0.0)
        trust = "" if busy <= QUIET else ": too much to trust these figures"
        yield f"{config}: between turns, other programs used up to {busy:.0%} of the CPUs{trust}"
        for name, errors in facts["gradient_errors"].items():
            yield f"{config}: {name}: gradients within {max(errors.values()):.0e} of PyTorch's"
        for name, said in facts["contenders"].items():
            if said["choice"]:
                yield f"{config}: {name}: {said['choice']}"
    for name, reason in found["left_out"].items():
        yield f"left out: {name}: {reason}"
