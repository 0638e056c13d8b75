"""The VGG example: what it is, what it reads, and that it learns on threads and MPI ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.cifar import load
from examples.vgg_channel_parallel import VGG
from symgraph.core.errors import ConfigError
from tests.helpers.pipelines import Case, Result, judge
from tests.mpi.launch import launch, needs_mpi

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples.vgg_channel_parallel"
SMALL = ("--first", "4", "--batch", "16", "--epochs", "1", "--steps", "6")


def run_vgg(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", EXAMPLE, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def losses(stdout: str) -> list[str]:
    return re.findall(r"[\d.]+% of \d+ test images right, loss [\d.]+", stdout)


def case_of(ranks: int, convolution: str) -> Case:
    rng = np.random.default_rng(0)
    symbol = VGG(ranks, convolution, first=4, dropout=0.0).network()
    feeds = {
        "data": rng.standard_normal((4, 3, 32, 32)).astype("float32"),
        "label": np.arange(4, dtype="int32"),
    }
    shapes, _, states = symbol.infer_shape(**{n: a.shape for n, a in feeds.items()})
    named = dict(zip(symbol.list_arguments(), shapes, strict=True))
    named |= dict(zip(symbol.list_auxiliary_states(), states, strict=True))
    arrays = {
        n: (rng.standard_normal(s) * (2 / np.prod(s[1:])) ** 0.5 if s[1:] else np.ones(s))
        for n, s in named.items()
        if n not in feeds
    }
    return Case(symbol, feeds, {n: a.astype("float32") for n, a in arrays.items()})


def joined(arrays, ranks: int):
    """The ranks' pieces of each parameter as those of one rank."""
    found = {}
    for name, array in arrays.items():
        layer = re.match(r"(conv\d_\d)_0(_.*)", name)
        if layer:
            array = np.concatenate([arrays[f"{layer[1]}_{i}{layer[2]}"] for i in range(ranks)])
        if layer or not name.startswith("conv"):
            found[name] = array
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_sharded_is_the_network_of_one_rank(ranks):
    """To 1e-5 of the largest, in float32."""
    case = case_of(ranks, "sharded")
    whole = Case(VGG(1, first=4, dropout=0.0).network(), case.feeds, joined(case.arrays, ranks))
    want, parts = judge(whole), judge(case)
    got = Result(parts.outputs, joined(parts.grads, ranks))
    assert got.grads.keys() == want.grads.keys()
    pairs = [
        *zip(got.outputs, want.outputs, strict=True),
        *[(got.grads[n], g) for n, g in want.grads.items()],
    ]
    for a, b in pairs:
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


def test_parallel_has_its_share_of_the_parameters():
    """X15: of each convolution but the first, whose three channels do not divide."""
    full, half = (
        {n: a.size for n, a in case_of(ranks, "parallel").arrays.items() if "norm" not in n}
        for ranks in (1, 2)
    )
    for name in (n for n in full if n.startswith("conv") and not n.startswith("conv1_1")):
        both = [half[name], half[name.replace("_0_", "_1_")]]
        assert both == [full[name] // 4] * 2


@pytest.mark.slow
def test_it_learns_digits():
    pytest.importorskip("sklearn")
    small = ("--first", "4", "--batch", "16", "--epochs", "1", "--dropout", "0")
    done = run_vgg(*small, "--convolution", "sharded")
    assert done.returncode == 0, done.stderr
    assert float(losses(done.stdout)[-1].split("%")[0]) > 70


@pytest.mark.slow
@pytest.mark.parametrize("convolution", [pytest.param("parallel", marks=needs_mpi)])
def test_threads_and_mpi_ranks_print_the_same(convolution):
    pytest.importorskip("sklearn")
    arguments = (*SMALL, "--convolution", convolution)
    ended = launch(2, EXAMPLE, *arguments)
    assert (ended.status, ended.stderr) == (0, ""), ended
    done = run_vgg(*arguments)
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 1
    assert losses(done.stdout) == losses(ended.stdout)


# -- data ----------------------------------------------------------------------------------------


def write_images(path: Path, count: int) -> np.ndarray:
    """Write random images; return their labels."""
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 256, (count, 3073), np.uint8)
    rows[:, 0] %= 10
    path.write_bytes(rows.tobytes())
    return rows[:, 0]


def test_images_in_a_folder(tmp_path):
    """What is held out says so in its name; without such files, some are."""
    for name, count in (("data_batch_1.bin", 4), ("data_batch_2.bin", 3), ("test_batch.bin", 2)):
        labels = write_images(tmp_path / name, count)
    (tmp_path / "readme.html").write_text("no images")
    train, test = load(tmp_path)
    assert (train.images.shape, test.images.shape) == ((7, 3, 32, 32), (2, 3, 32, 32))
    np.testing.assert_array_equal(test.labels, labels)
    assert test.labels.dtype == "int32"
    whole = np.concatenate([train.images, test.images])
    assert whole.dtype == "float32"
    np.testing.assert_allclose([whole.mean(), whole.std()], [0, 1], atol=1e-5)
    assert sum(map(len, load(tmp_path / "data_batch_1.bin"))) == 4


def test_wrong_data_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no files of arrays"):
        load(tmp_path)
    write_images(tmp_path / "a.bin", 20)
    done = run_vgg("--data", tmp_path, *SMALL)
    assert done.returncode == 2
    assert "error: --batch 16 is more than the" in done.stderr
