"""Runs by another BLAS from end to end: results, bits, memory, and what says that it ran.

With the extra `mkl` they are MKL's, else those of a stand-in.
"""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime import limit_blas, make_cluster, use_blas
from runtime.backends.cpu.blas import BACK_ENDS
from runtime.backends.device.arrays import HOST
from runtime.backends.scratch import scratch_held
from runtime.engine.rank import RankResources
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from runtime.training.checkpoints.state import read_about
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer, agree_on_config
from symgraph.app.config import load_config
from symgraph.core.context import cpu
from symgraph.core.errors import ConfigError
from tests.fakes.fake_mkl import fake_mkl
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import (
    assert_close,
    assert_same_bits,
    judge,
    make_plan,
    on_devices,
    on_threads,
)
from tests.helpers.profiles import costs
from tests.helpers.recurrent import lstm_case
from tests.helpers.small_lm import write_config

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")

DEVICES = 3


@pytest.fixture(autouse=True)
def library(monkeypatch):
    if not BACK_ENDS["mkl"].installed():
        monkeypatch.setitem(BACK_ENDS, "mkl", fake_mkl()[0])


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(6))
def test_no_placement_or_schedule_changes_a_bit(seed):
    case = random_case(seed)
    with use_blas("mkl"), limit_blas(1):
        alone = on_threads(case, Options(micro_batches=2))
        assert_close(alone, judge(case))
        for other, schedule in enumerate(SCHEDULES):
            groups = random_groups(10 * seed + other, DEVICES)
            assert_same_bits(on_threads(case, on_devices(DEVICES, groups, schedule, 2)), alone)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_unrolled_lstm(threads):
    case = lstm_case(3, 4, batch=20, hidden=40)
    groups = {f"layer{i}": cpu(i % 2) for i in range(3)} | {"head": cpu(1)}
    with use_blas("mkl"):
        alone = on_threads(case, Options())
        assert_close(alone, judge(case))
        with limit_blas(threads):
            for segment in (None, 2):
                how = Options(groups, cpu(0), (), "1f1b", 1, time_segment=segment)
                one = on_threads(case, Options(time_segment=segment))
                assert_close(one, judge(case))
                assert_same_bits(on_threads(case, how), one)
            assert_same_bits(on_threads(case, Options()), alone)


def test_scratch_of_bfloat16_is_planned():
    case = lstm_case(1, 2, batch=20, hidden=40)
    feeds, arrays = (
        {n: a.astype(np.float32) for n, a in values.items()} for values in (case.feeds, case.arrays)
    )
    case = case._replace(feeds=feeds, arrays=arrays)
    with use_blas("mkl"), make_cluster("threads", 1) as cluster:
        made = make_plan(case, Options(precision="bfloat16"))
        resources = RankResources()

        def work(transport):
            Worker(made, 0, arrays, wanted=(), resources=resources).step(transport, feeds)
            return scratch_held(HOST, resources.context)

        assert cluster.run(work) == [made.memory[0].scratch]


# -- what says that it ran -----------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    more = f"checkpoint: {{directory: {tmp_path / 'saved'}}}\nblas_threads: 1\nblas: mkl\n"
    more += f"partition: {{costs: {costs(tmp_path)}}}\n"
    return write_config(tmp_path, "learning_rate: 0.1, steps: 2", more)


def trained(path, *overrides):
    config = load_config(str(path), overrides)
    with make_cluster("threads", 2) as cluster, use_blas(config.blas), limit_blas(1):
        agree_on_config(config, cluster)
        trainer = Trainer(prepare(config), cluster, load_data(config))
        trainer.resume()
        trainer.fit()


def test_a_checkpoint_says_what_multiplied_and_resuming_by_another_warns(path):
    trained(path)
    about = read_about(path.parent / "saved" / "step-00000002")
    assert about["versions"]["BLAS"].startswith("mkl ")
    with pytest.warns(UserWarning, match=r"other versions \(BLAS packed .*, not mkl .*: bits may"):
        trained(path, "blas=openblas", "train.steps=3")


@pytest.mark.slow
def test_a_profile_and_its_report_say_what_multiplied(path, tmp_path):
    found = sg.profile(str(path), ["partition.strategy=null"], steps=2, baseline=False)
    assert found.figures()["blas"].startswith("mkl ")
    assert f"products of matrices: {found.figures()['blas']}" in str(found)
    page = found.report(str(tmp_path / "report"))
    assert f"products by {found.figures()['blas']}" in page.read_text()
    assert "blas: mkl" in (tmp_path / "report" / "config.yaml").read_text()


@pytest.mark.slow
def test_a_plan_made_inside_is_profiled_by_the_same(path):
    case = lstm_case(2, 2)
    with use_blas("mkl"):
        made = make_plan(
            case, Options({"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}, cpu(0))
        )
        assert sg.profile(made, steps=2, baseline=False).figures()["blas"].startswith("mkl ")


def test_candidates_of_a_comparison_may_differ_in_it(path):
    with path.open("a") as file:
        file.write("candidates: {one: [blas=mkl], other: [blas=openblas]}\n")
    ranking = sg.compare(str(path), steps=1, baseline=False).figures()["ranking"]
    said = {c["name"]: c["blas"] for c in ranking if c["name"] in ("one", "other")}
    assert said["one"].startswith("mkl ")
    assert said["other"].startswith("packed ") or said["other"].startswith("openblas ")


def test_a_name_that_is_none(path):
    with pytest.raises(ConfigError, match="blas"):
        load_config(str(path), ["blas=atlas"])
