"""MXNet's own tests, from a checkout of MXNet, with symgraph in MXNet's place.

    python -m benchmarks.parity.mxnet_tests --mxnet FOLDER [--jobs N] [--list] [NAME ...]
    python -m benchmarks.parity.mxnet_tests --mxnet FOLDER --examples

FOLDER is a checkout of MXNet 1.x (tags 1.2.1 and 1.9.1 are tried); NAMEs are those of FILES. Each
file runs in processes of its own, with a limit for each test. A test that does not pass is *out of
scope* if an error says so (symgraph's for parts left out, or a placeholder's), or by the names in
its code: mxnet_plugin.py has the rules, USES and SYMBOLIC. All others have *failed*; --list prints
them with their errors. Nothing of MXNet's is in this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.parity.mxnet_data import write_mnist
from benchmarks.parity.mxnet_examples import run_all

ROOT = Path(__file__).parents[2]
UNIT = (
    "attr symbol infer_shape infer_type executor model_parallel multi_device_exec rnn module io "
    "metric init optimizer random viz operator"
)
FILES = {name: f"unittest/test_{name}.py" for name in UNIT.split()}
FILES |= {name: f"train/test_{name}.py" for name in ("bucketing", "mlp", "conv")}
Result = dict[str, Any]
# What today's numpy does not take any more, in copies of the tests.
EDITS = (
    (r"(asnumpy\(\)|\bxx|\bdata)\[(idx|exp)\]", r"\1[tuple(\2)]"),
    (r"threshold=np\.nan", "threshold=np.inf"),
    (r"np\.int32, np\.uint8\](\s+config_list)", r"np.int32]\1"),
)


def run_file(folder: Path, file: str, seconds: int) -> dict[str, Result]:
    """Return the result of each test of a file; a process that dies is started again behind it."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as scratch:
        lines, done = Path(scratch, "results"), Path(scratch, "done")
        tests = Path(scratch, "mxnet", "tests", "python")
        shutil.copytree(folder / "tests" / "python", tests)
        path = tests / file
        text = path.read_text("utf-8")
        for pattern, new in EDITS:
            text = re.sub(pattern, new, text)
        path.write_text(text, "utf-8")
        write_mnist(Path(scratch, "data"), 60_000 if file.endswith("test_io.py") else 6000)
        for _ in range(20):
            done.write_text("\n".join(results))
            lines.write_text("")
            ended = _run(folder, path, lines, done, seconds)
            running = None
            for line in map(json.loads, lines.read_text().splitlines()):
                running = line["test"] if line["outcome"] == "began" else None
                if running is None:
                    results[line["test"]] = line
            if running is None:
                break
            results[running] = {"outcome": "failed", "part": None, "error": ended, "where": ""}
    return results


def _run(folder: Path, path: Path, lines: Path, done: Path, seconds: int) -> str:
    """Run a file's tests; return how the process ended."""
    command = [sys.executable, "-m", "pytest", str(path), "-q", "--noconftest", "-c", os.devnull]
    command += ["--rootdir", str(path.parent), "-p", "benchmarks.parity.mxnet_plugin"]
    command += ["-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist"]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PARITY_MXNET": str(folder),
        "PARITY_RESULTS": str(lines),
        "PARITY_DONE": str(done),
        "PARITY_SECONDS": str(seconds),
    }
    with subprocess.Popen(
        command, cwd=lines.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        size = -1
        while True:  # until it ends, or nothing has begun or ended for much longer than a limit
            try:
                process.wait(30 * seconds + 60)
            except subprocess.TimeoutExpired:
                if lines.stat().st_size == size:
                    process.kill()
                    return "the process hung"
                size = lines.stat().st_size
            else:
                return f"the process ended with status {process.returncode}"


def summary(results: dict[str, Result]) -> tuple[int, Counter[str], list[tuple[str, Result]]]:
    """Return the number of tests that passed, those out of scope by part, and the failed ones."""
    passed = sum(r["outcome"] == "passed" for r in results.values())
    others = [(test, r) for test, r in results.items() if r["outcome"] != "passed"]
    parts = Counter(str(r["part"]) for _, r in others if r.get("part"))
    return passed, parts, [(test, r) for test, r in others if not r.get("part")]


def reason(error: str) -> str:
    """Return an error without what differs from test to test."""
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", error.split("\n")[0])
    return re.sub(r"'[^']*_[^']*'", "'...'", text)[:110]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mxnet", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=int, default=60, help="the processor time of a test")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--list", action="store_true", help="print each failed test")
    parser.add_argument("--examples", action="store_true", help="run MXNet's examples instead")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FILES))
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in FILES]
    if unknown and not given.examples:
        parser.error(f"no file {unknown[0]!r}; known: {', '.join(FILES)}")
    folder = given.mxnet.resolve()
    if given.examples:
        return run_all(folder, given.names, 3 * given.seconds)
    names = [n for n in given.names or FILES if (folder / "tests" / "python" / FILES[n]).exists()]
    totals, reasons = Counter[str](), Counter[str]()
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = pool.map(lambda name: run_file(folder, FILES[name], given.seconds), names)
        for name, results in zip(names, runs, strict=True):
            passed, parts, failed = summary(results)
            totals.update({"passed": passed, "out of scope": parts.total(), "failed": len(failed)})
            listed = ", ".join(f"{part} {count}" for part, count in sorted(parts.items()))
            about = f"{parts.total():3} out of scope{f' ({listed})' if parts else ''}"
            print(f"{name:18} {passed:3} passed, {len(failed):3} failed, {about}", flush=True)
            for test, result in failed:
                reasons[reason(result["error"])] += 1
                if given.list:
                    print(f"    {test} {result.get('where', '')}: {result['error'][:200]}")
    print(", ".join(f"{count} {what}" for what, count in totals.items()))
    for text, count in reasons.most_common(25):
        print(f"  {count:3} {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
