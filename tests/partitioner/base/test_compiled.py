"""Compiled functions start where nothing can be cached, and say which setting is wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from partitioner.base.compiled import compiled, largest

ROOT = Path(__file__).parents[3]
PROGRAM = """\
import logging
logging.basicConfig(level=logging.DEBUG)
from partitioner.base.compiled import compiled
@compiled()
def twice(x):
    return 2 * x
print(twice(21), twice.stats.cache_path)
"""
# numba looks in NUMBA_CACHE_DIR only, which is not set: as if all its folders were read-only
NOWHERE = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run PROGRAM, where numba finds no folder, with this folder for temporary files."""
    program = folder.parent / "program.py"
    program.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-B", program],
        env=environment | NOWHERE | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_cache_goes_to_a_private_folder_if_numba_finds_none(tmp_path):
    """F11: package folder and HOME not writable: "no locator available" with a traceback."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    done = run(folder)
    private = folder / f"symgraph-{os.getuid()}"
    assert done.stdout.startswith(f"42 {private}"), done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert "DEBUG" not in done.stderr  # numba's statements of each kernel
    assert private.stat().st_mode & 0o777 == 0o700
    assert list(private.rglob("*.nbi"))
    again = run(folder)
    assert (again.stdout, again.stderr) == (done.stdout, "")  # said once


def test_a_folder_that_others_can_write_to_holds_no_code(tmp_path):
    """Cached code is run: another user may have prepared a folder of that name in /tmp."""
    folder = tmp_path / "tmp"
    open_to_all = folder / f"symgraph-{os.getuid()}"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    done = run(folder)
    assert done.stdout == "42 None\n", done.stderr
    assert "not cached" in done.stderr
    assert list(open_to_all.iterdir()) == []


def test_code_that_cannot_be_saved_is_used(tmp_path, monkeypatch):
    """With a full disk for the cache, a run ended in "No space left on device"."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @compiled()
    def twice(x):
        return 2 * x

    def full(key, code):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(twice._cache._cache_file, "save", full)
    with pytest.warns(UserWarning, match=r"No space .* set NUMBA_CACHE_DIR") as warned:
        assert (twice(21), twice(1.5)) == (42, 3.0)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [("NUMBA_NUM_THREADS", "0"), ("NUMBA_NUM_THREADS", "many"), ("NUMBA_DISABLE_JIT", "1")],
)
def test_a_setting_with_which_numba_fails_is_named(setting, value):
    """F12: NUMBA_NUM_THREADS=0 and NUMBA_DISABLE_JIT=1 ended in tracebacks of numba's."""
    done = subprocess.run(
        [sys.executable, "-m", "partitioner", "solve", "missing.json"],
        env=os.environ | {setting: value},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"symgraph: error: {setting}")
    assert done.stderr.count("\n") == 1


@compiled()
def twice(x):
    return 2 * x


def test_processes_that_compile_at_the_same_time_have_files_of_their_own():
    """Neither has seen the other's entry; else the code for one would run on the other's types."""
    file, found = twice._cache._cache_file, []
    for number in (1, 1.5):
        file.flush()
        assert twice(number) == 2 * number
        found.append({*file._load_index().values()})
    assert [*map(len, found)] == [1, 1]
    assert found[0].isdisjoint(found[1])


def test_the_largest_of_numbers_of_any_type():
    """Kernels call this, as numba compiles `max` for longer than some of them."""

    @numba.njit
    def call(numbers):
        return largest(numbers)

    assert call(np.array([3, -1, 4])) == 4
    assert call(np.array([-3.5, -np.inf])) == -3.5
    assert call(np.array([False, True, False]))
    assert not call(np.zeros(3, bool))
