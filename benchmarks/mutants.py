"""How much the short test suite catches: seeded mistakes in the core, and who notices them.

    python -m benchmarks.mutants [--count 60] [--seed 1]

Each mutant is a copy of the tree with one small mistake (a comparison, a number, an operator, a
condition, a dropped statement) in the graph IR, the partitioner's cut or the replay of schedules.
The short suite runs on it, and where that passes, the slow tests do. The table says per mutant who
failed; the last line says what share of the mutants that anything kills the short suite kills.
About a minute per mutant.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
TARGETS = (  # files to change
    "symgraph/core/graph.py",
    "symgraph/core/build.py",
    "partitioner/cutting/cut.py",
    "partitioner/base/stages.py",
    "partitioner/base/node_bodies.py",
    "runtime/schedule/replay",
)
TESTS = (  # tests that could notice
    "tests/symgraph/core",
    "tests/symgraph/frontend/test_lower.py",
    "tests/symgraph/passes",
    "tests/partitioner",
    "tests/runtime/schedule",
    "tests/runtime/planning",
    "tests/system",
)
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}


def mutations(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """(line, what was changed, the changed tree) for every mistake that can be made in a file."""
    for place, node in enumerate(ast.walk(tree)):
        for words, change in changes(node):
            mutant = deepcopy(tree)
            twin = next(n for i, n in enumerate(ast.walk(mutant)) if i == place)
            change(twin)
            yield node.lineno, words, mutant


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The mistakes that can be made at one node: words, and a function that makes it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        new = COMPARISONS[type(node.ops[0])]
        yield f"{ast.unparse(node)}: {new.__name__}", lambda n: n.ops.__setitem__(0, new())
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        new = ARITHMETIC[type(node.op)]
        yield f"{ast.unparse(node)}: {new.__name__}", lambda n: setattr(n, "op", new())
    elif isinstance(node, ast.BoolOp):
        new = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{ast.unparse(node)}: {new.__name__}", lambda n: setattr(n, "op", new())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} -> {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        negated = f"if not ({ast.unparse(node.test)})"
        yield negated, lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    elif isinstance(node, (ast.AugAssign, ast.Continue)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield f"without {ast.unparse(node)}", drop


def drop(node: ast.AST) -> None:
    """Turn a statement into `pass`, in place."""
    lines = {k: getattr(node, k) for k in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    node.__class__ = ast.Pass
    node.__dict__.clear()
    node.__dict__.update(lines)


def sample(count: int, seed: int) -> list[tuple[str, int, str, str]]:
    """(file, line, words, text) of mutants, drawn from all files alike."""
    rng = random.Random(seed)
    files = [
        f for t in TARGETS for f in ([ROOT / t] if t.endswith(".py") else (ROOT / t).glob("*.py"))
    ]
    drawn = []
    pools = {f: list(mutations(ast.parse(f.read_text(encoding="utf-8")))) for f in sorted(files)}
    pools = {f: pool for f, pool in pools.items() if pool}
    while len(drawn) < count and any(pools.values()):
        file = rng.choice([f for f, pool in pools.items() if pool])
        line, words, tree = pools[file].pop(rng.randrange(len(pools[file])))
        drawn.append((str(file.relative_to(ROOT)), line, words, ast.unparse(tree)))
    return drawn


def killed(tree: Path, marks: str) -> bool:
    """Whether one of the tests with these marks fails on a tree, or none can be collected."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "2",
        "--timeout",
        "120",
        "-m",
        marks,
    ]
    done = subprocess.run([*command, *TESTS], cwd=tree, capture_output=True, check=False)
    return done.returncode != 0


def main() -> None:
    """Try the mutants; print a line for each, and the share at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    options = parser.parse_args()
    if killed(ROOT, MARKS["short"]):
        sys.exit("the short suite fails without any mistake: mend that first")
    tally = {"short": 0, "slow": 0, "nobody": 0}
    for number, (file, line, words, text) in enumerate(sample(options.count, options.seed), 1):
        with TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "runs"))
            if "numba" in text:  # compiled callers elsewhere keep the old code
                for cache in (tree / "runtime" / "schedule").rglob("*.nb[ci]"):
                    cache.unlink()
            (tree / file).write_text(text, encoding="utf-8")
            who = next((w for w in ("short", "slow") if killed(tree, MARKS[w])), "nobody")
        tally[who] += 1
        print(f"{number:4} {who:7} {file}:{line}  {words[:70]}", flush=True)
    kills = tally["short"] + tally["slow"]
    print(
        f"{tally}: the short suite kills {tally['short'] / max(kills, 1):.1%} of the {kills} killed"
    )


MARKS = {"short": "not slow and not mpi", "slow": "slow and not mpi"}

if __name__ == "__main__":
    main()
