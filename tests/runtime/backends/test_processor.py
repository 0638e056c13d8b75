"""What the system says of the processor's caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.costs.cost import Caches
from runtime.backends.device.processor import USUAL, Sweeps, find_caches


def described(folder: Path, *caches: str) -> Path:
    """A folder as Linux has it; a cache is its level, type, size and cores."""
    for number, words in enumerate(caches):
        index = folder / f"index{number}"
        index.mkdir()
        names = ("level", "type", "size", "shared_cpu_list")
        for name, word in zip(names, words.split(), strict=True):
            (index / name).write_text(word + "\n")
    return folder


@pytest.mark.parametrize(("workers", "share"), [(1, 32), (2, 16), (4, 8), (100, 4)])
def test_the_last_cache_is_shared_by_those_who_work(tmp_path, workers, share):
    folder = described(
        tmp_path,
        "1 Data 32K 0-1",
        "1 Instruction 64K 0-1",
        "2 Unified 1024K 0-1",
        "3 Unified 32M 0-3,8-11",
    )
    assert find_caches(workers, folder) == Caches(1 << 20, share << 20)


def test_a_part_of_the_shared_cache_is_no_less_than_the_own_one(tmp_path):
    folder = described(tmp_path, "1 Data 32K 0", "2 Unified 2M 0", "3 Unified 4M 0-7")
    assert find_caches(8, folder) == Caches(2 << 20, 2 << 20)


@pytest.mark.parametrize("caches", [(), ("2 Unified 1M 0",), ("2 Unified ? 0", "3 Unified 8M x")])
def test_where_the_system_says_little_the_usual_is_assumed(tmp_path, caches):
    assert find_caches(2, described(tmp_path, *caches)) == Caches(USUAL.own, USUAL.shared // 2)
    assert find_caches(1, tmp_path / "none") == USUAL


def test_this_machine_has_some():
    found = find_caches(2)
    assert 0 < found.own <= found.shared
    sweeps = Sweeps(found, 2)
    sweeps.own()
    sweeps.all()
