"""Tests of benchmarks/networks.py: its figures, its contenders' settings and their processes."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from statistics import median

import pytest

from benchmarks import networks
from benchmarks.peers import contenders, results, sgemm_peak
from benchmarks.peers.contenders import (
    DEFAULT,
    DEFAULT_ON_GPU,
    LeftOut,
    Process,
    environment,
    parse,
)
from benchmarks.peers.protocol import CONFIGS, ON_GPUS, batches, translations
from benchmarks.peers.results import Result
from benchmarks.peers.symgraph_networks import even_groups
from symgraph import gpu

# A contender whose steps do nothing, which also prints what is no answer.
IDLE = """
from benchmarks.peers.protocol import serve
print("a library's greeting", flush=True)
serve(lambda number: float(number), "idle 1.0", choice="nothing")
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def idle(tmp_path: Path, program: str = IDLE) -> Process:
    settings = environment({}, parse("jax")[0], (), None)
    return Process([sys.executable, "-c", program], settings, tmp_path / "log")


# -- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "rate"),
    [
        ("small", 31_500),
        ("medium", 6_280),
        ("large", 1_630),
        ("deep", 3_810),
        ("mxnet-example", 5_850),
        ("transformer", 22_300),
        ("vgg", 266),
        ("seq2seq", 7_470),
    ],
)
def test_operations_give_the_known_limit_at_500_gflops(config, rate):
    operations = results.operations(config, forward=False)
    assert operations == 3 * results.operations(config, forward=True)
    assert CONFIGS[config].count * 500e9 / operations == pytest.approx(rate, rel=0.005)


def test_ratio_compares_what_ran_in_the_same_round():
    ours = Result([[1.0, 1.0, 9.0], [3.0, 3.0, 3.0], [1.0]])
    theirs = Result([[2.0, 2.0], [6.0], [2.5]])
    assert results.ratio(ours, theirs) == 2.0
    all_ours = [s for turn in ours.seconds for s in turn]
    assert median([2.0, 2.0, 6.0, 2.5]) / median(all_ours) != 2.0


def test_figures_of_a_contender():
    config, peak = "small", 100.0
    found = results.figures(
        config, {"symgraph-2": Result([[0.1, 0.2], [0.3]]), "jax": Result([[0.4], [0.4]])}, peak
    )
    ours = found["symgraph-2"]
    assert ours["rate"] == pytest.approx(400 / 0.2)
    assert ours["quartiles"] == pytest.approx([400 / 0.25, 400 / 0.15])
    assert ours["gflops"] == pytest.approx(3 * CONFIGS[config].flops / 0.2 / 1e9)
    assert ours["share_of_peak"] == pytest.approx(ours["gflops"] / peak)
    assert ours["reference_ratio"] == 1.0
    assert found["jax"]["reference_ratio"] == pytest.approx(median([0.4 / 0.15, 0.4 / 0.3]))


def test_peak_is_the_median_of_each_rounds_fastest():
    result = Result([[3.0, 1.0], [2.0, 9.0], [5.0]])
    assert results.peak_gflops(result) == pytest.approx(sgemm_peak.FLOPS / 2.0 / 1e9)


def test_without_symgraph_nobody_is_compared():
    found = results.figures("small", {"jax": Result([[0.4]])}, 100.0)
    assert found["jax"]["reference_ratio"] is None
    (row, limit) = results.rows("small", found, 100.0)
    assert row[5] == "-"
    assert limit[2] == f"{100e9 / 3 / CONFIGS['small'].flops * 400:,.0f} tokens"
    assert len(row) == len(limit) == len(results.COLUMNS)


@pytest.mark.parametrize(("busy", "said"), [([0.01, 0.02], False), ([0.01, 0.3], True)])
def test_a_machine_that_others_use_is_told(busy, said):
    machine = {"cpu": "a CPU", "cpus": 2, "commit": "1", "time": "now", "dropped": {}}
    facts = {"peak_blas": [], "contenders": {}, "others_busy": busy, "gradient_errors": {}}
    found = {"machine": machine, "configs": {"small": facts}, "left_out": {}}
    assert any("too much to trust" in note for note in results.notes(found)) is said


# -- settings ------------------------------------------------------------------------------------


def test_settings_of_the_shell_do_not_reach_a_contender():
    around = {
        "PATH": "/bin",
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_NUM_THREADS": "7",
        "OMP_NUM_THREADS": "7",
        "MALLOC_ARENA_MAX": "1",
        "LD_PRELOAD": "x.so",
    }
    contender, variants = parse("symgraph-1x2")
    made = environment(around, contender, variants, None)
    assert made == {"PATH": "/bin", "OPENBLAS_NUM_THREADS": "2"}


def test_variants_add_their_settings():
    contender, variants = parse("torch+malloc+mkl")
    made = environment({"PATH": "/bin"}, contender, variants, Path("/shim.so"))
    assert made == {"PATH": "/bin", "LD_PRELOAD": "/shim.so", **contenders.MALLOC}
    assert contenders.title("torch+malloc") == "PyTorch nn.LSTM, malloc tuned"


def test_default_contenders_are_known():
    """All but those without a planner, which nobody would use so."""
    assert {parse(name)[0].title for name in (*DEFAULT, *DEFAULT_ON_GPU)} == {
        c.title for c in contenders.CONTENDERS.values() if "--even" not in c.arguments
    }


@pytest.mark.parametrize("count", [2, 4])
def test_layers_split_evenly(count):
    contexts = tuple(gpu(i) for i in range(count))
    placed = even_groups(CONFIGS["deep"], contexts)
    assert placed.pop("embed") == contexts[0]
    assert placed.pop("decode") == contexts[-1]
    assert [context.index for context in placed.values()] == sorted([*range(count)] * (8 // count))
    with pytest.raises(SystemExit, match="2 layers cannot be split evenly over 4 devices"):
        even_groups(CONFIGS["small"], tuple(gpu(i) for i in range(4)))


def test_some_are_written_for_lstms_only(tmp_path):
    benchmark = networks.Benchmark(Namespace(forward=False), None, tmp_path)
    others = {name: c for name, c in contenders.CONTENDERS.items() if not c.others}
    assert set(others) == {"torch-pipeline", "jax", "mxnet", "chainer"}
    for contender in others.values():
        for config in ("transformer", "seq2seq", "vgg"):
            with pytest.raises(LeftOut, match=f"no {config} network"):
                benchmark.process(config, contender, (), ())
        with pytest.raises(LeftOut, match="no --bfloat16"):
            benchmark.process("small", contender, ("bf16",), ())
    assert contenders.title("torch+bf16", "transformer") == "PyTorch, its attention, bfloat16"


def test_sentences_fill_their_buckets_and_targets_are_late_labels():
    config = CONFIGS["seq2seq"]
    for key, batch in zip(config.buckets, translations(config)[0], strict=True):
        source, length, target, label = batch.values()
        assert source.shape == (config.batch, key[0])
        assert ((source != 0).sum(1) == length).all()
        assert key[0] - 10 < length.min() <= length.max() <= key[0]
        assert (target[:, 1:] == label[:, :-1]).all()


def test_on_gpus_sizes_have_other_batches():
    assert CONFIGS["large@64"] == CONFIGS["large"]._replace(batch=64)
    assert {CONFIGS[name].batch for name in ON_GPUS} == {20, 32, 64, 128, 256}


@pytest.mark.slow
def test_without_a_gpu_its_benchmark_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert networks.main(["--gpu", "--configs", "small"]) == 1
    *_, message = capsys.readouterr().err.splitlines()
    assert "the sgemm peak cannot be measured" in message
    assert "gpu(0) cannot be used" in message


def test_an_unknown_contender_is_told_in_one_line(capsys):
    assert networks.main(["--contenders", "torch+fast"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "'torch+fast' is unknown" in message


def test_all_draw_the_same_batches():
    (data, label), *_ = batches(CONFIGS["small"])
    assert data.shape == label.shape == (20, 20)
    assert (data == batches(CONFIGS["small"])[0][0]).all()


# -- processes -----------------------------------------------------------------------------------


def test_a_contender_stands_still_between_its_turns(tmp_path):
    with idle(tmp_path) as process:
        assert process.ready(60)["versions"] == "idle 1.0"
        pid = process._child.pid
        deadline = time.monotonic() + 10
        while state_of(pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state_of(pid) == "T"
        first, second = process.run(3, 60), process.run(7, 60)
    assert [len(said["seconds"]) for said in (first, second)] == [3, 7]
    assert second["loss"] == (2 + 3 + 7 - 1) % 8
    assert first["peak_bytes"] > 1 << 20
    process.close()


def test_a_contender_that_fails_is_left_out_with_its_last_words(tmp_path):
    program = "raise SystemExit('no such thing here')"
    with (
        idle(tmp_path, program) as process,
        pytest.raises(LeftOut, match=r"^no such thing here$"),
    ):
        process.ready(60)


def test_a_contender_that_hangs_is_left_out(tmp_path):
    with (
        idle(tmp_path, "import time; time.sleep(60)") as process,
        pytest.raises(LeftOut, match="no answer within"),
    ):
        process.ready(0.2)


@pytest.mark.slow
def test_peers_without_an_interpreter_are_left_out_and_told(capsys, tmp_path):
    record = tmp_path / "record.json"
    status = networks.main(
        [
            "--quick",
            "--contenders",
            "torch",
            "chainer",
            "--json",
            str(record),
        ]
    )
    captured = capsys.readouterr()
    assert status == 0
    assert "left out: small torch: --torch PYTHON is not given" in captured.out
    assert "limit: products at the sgemm peak" in captured.out
    assert '"small chainer": "--chainer PYTHON is not given"' in record.read_text()
