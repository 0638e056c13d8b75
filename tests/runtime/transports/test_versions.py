"""Versions: ranks run one code; other differences are told."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from runtime.transports import make_cluster
from runtime.transports.agreement import agree_on_versions
from runtime.transports.versions import PACKAGES, code_digest, versions
from symgraph.core.errors import RunError

ROOT = Path(__file__).resolve().parents[3]


def compared(*of_ranks: dict[str, str]) -> None:
    with make_cluster("threads", len(of_ranks)) as cluster:
        cluster.run(lambda transport: agree_on_versions(transport, of_ranks[transport.rank]))


def test_another_constant_is_another_version(tmp_path):
    """F8: a rank whose Adam had another constant trained along; only plans were compared."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    assert code_digest(tmp_path) == code_digest()
    file = tmp_path / "symgraph" / "frontend" / "optimizer" / "adaptive.py"
    text = file.read_text()
    assert "0.999" in text
    file.write_text(text.replace("0.999", "0.998"))
    theirs = {**versions(), "symgraph": f"0.1.0 (code {code_digest(tmp_path):.12})"}
    with pytest.raises(RunError, match=r"rank 1 has symgraph .*, but rank 0 has .*: install the"):
        compared(versions(), theirs, versions())


def test_other_libraries_are_warned_of():
    """On hosts of two kinds results are right, but their bits depend on the placement."""
    other = {**versions(), "BLAS": "openblas 0.3 Haswell"}
    with pytest.warns(UserWarning, match="rank 1 has BLAS openblas 0.3 Haswell .rank 0: "):
        compared(versions(), other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared(versions(), versions())
