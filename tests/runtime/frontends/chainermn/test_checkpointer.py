"""Checkpoints of one program a rank: all go on from the newest iteration that all of them have."""

from __future__ import annotations

import errno
import shutil

import numpy as np
import pytest

import symgraph as sg
from runtime.frontends import chainermn
from runtime.training.checkpoints.disk import Disk
from symgraph.core.errors import ConfigError, PeerFailed
from tests.runtime.frontends.chainermn.test_training import BATCH, data, network, on_ranks


def state(comm, value: float) -> dict[str, np.ndarray]:
    """Arrays of which each rank has its own."""
    empty = np.empty((0, 2))  # was saved, but could not be loaded
    return {"w": np.full((2, comm.rank + 1), value), "n": np.array(int(value)), "none": empty}


def saved(comm, path, iterations, keep=5):
    made = chainermn.create_multi_node_checkpointer("run", comm, path, keep)
    for i in iterations:
        made.save(i, state(comm, 10.0 * i), {"epoch": i // 2, "rank": comm.rank})


def loaded(comm, path):
    """What a new run finds: where it goes on, and its arrays."""
    found = state(comm, -1.0)
    made = chainermn.create_multi_node_checkpointer("run", comm, path)
    return made.maybe_load(found), found


def test_each_rank_gets_its_own_arrays_back(tmp_path):
    on_ranks(3, lambda comm: saved(comm, tmp_path, [1, 2, 3]))
    for rank, (place, arrays) in enumerate(on_ranks(3, lambda comm: loaded(comm, tmp_path))):
        assert place == (3, {"epoch": 1, "rank": rank})
        assert arrays["w"].tolist() == [[30.0] * (rank + 1)] * 2
        assert arrays["n"] == 30


def test_nothing_to_load_changes_nothing(tmp_path):
    for place, arrays in on_ranks(2, lambda comm: loaded(comm, tmp_path)):
        assert place is None
        assert arrays["n"] == -1


def test_the_last_few_are_kept(tmp_path):
    on_ranks(2, lambda comm: saved(comm, tmp_path, range(6), keep=2))
    for rank in range(2):
        names = sorted(p.name for p in (tmp_path / "run" / f"rank-{rank}").iterdir())
        assert names == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_newest_that_all_ranks_have(tmp_path, ranks):
    """X17: ranks have different newest iterations; one of them was still writing its last."""
    on_ranks(ranks, lambda comm: saved(comm, tmp_path, [1, 2, 3, 4]))
    shutil.rmtree(tmp_path / "run" / "rank-1" / "step-00000004")
    shutil.rmtree(tmp_path / "run" / "rank-0" / "step-00000002")
    begun = tmp_path / "run" / "rank-1" / ".step-00000004.partial"
    begun.mkdir()
    (begun / "rank-1.safetensors").write_bytes(b"half")
    for place, arrays in on_ranks(ranks, lambda comm: loaded(comm, tmp_path)):
        assert place.iteration == 3
        assert arrays["n"] == 30
    on_ranks(ranks, lambda comm: saved(comm, tmp_path, [4]))
    assert not begun.exists()


def test_a_damaged_snapshot_does_not_count(tmp_path):
    """A bit of one rank's newest had flipped: that rank alone trained on with a wrong number."""
    on_ranks(2, lambda comm: saved(comm, tmp_path, [1, 2, 3]))
    file = tmp_path / "run" / "rank-1" / "step-00000003" / "rank-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="step-00000003 is damaged: rank-1.safetensors is not as"):
        found = on_ranks(2, lambda comm: loaded(comm, tmp_path))
    assert [(place.iteration, arrays["n"]) for place, arrays in found] == [(2, 20), (2, 20)]


def test_a_rank_that_dies_while_it_saves(tmp_path):
    """The others have the new one, and the old ones still, though they keep but one."""
    on_ranks(2, lambda comm: saved(comm, tmp_path, [1], keep=1))

    def dies(comm):
        made = chainermn.create_multi_node_checkpointer("run", comm, tmp_path, keep=1)
        if comm.rank == 1:
            raise ZeroDivisionError
        with pytest.raises(PeerFailed):
            made.save(2, state(comm, 20.0))

    with pytest.raises(ZeroDivisionError):
        on_ranks(2, dies)
    assert [place.iteration for place, _ in on_ranks(2, lambda c: loaded(c, tmp_path))] == [1, 1]


def test_the_same_iteration_of_another_run_is_another_one(tmp_path):
    """Rank 1 died before it could write iteration 2 anew: its old one does not fit rank 0's."""
    on_ranks(2, lambda comm: saved(comm, tmp_path, [1, 2]))
    old = tmp_path / "run" / "rank-1" / "step-00000002"
    shutil.copytree(old, tmp_path / "old")
    on_ranks(2, lambda comm: saved(comm, tmp_path, [2]))
    shutil.rmtree(old)
    shutil.copytree(tmp_path / "old", old)
    assert [place.iteration for place, _ in on_ranks(2, lambda c: loaded(c, tmp_path))] == [1, 1]


def test_a_run_begun_anew_is_the_newest(tmp_path):
    on_ranks(2, lambda comm: saved(comm, tmp_path, [7, 8]))
    on_ranks(2, lambda comm: saved(comm, tmp_path, [1]))
    assert [place.iteration for place, _ in on_ranks(2, lambda c: loaded(c, tmp_path))] == [1, 1]


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path):
    on_ranks(2, lambda comm: saved(comm, tmp_path, [1]))
    heard = []

    def work(comm):
        wrong = {"w": np.zeros((2, comm.rank + 1 + comm.rank)), "n": np.array(-1)}
        try:
            chainermn.create_multi_node_checkpointer("run", comm, tmp_path).maybe_load(wrong)
        finally:
            heard.append(int(wrong["n"]))

    with pytest.raises(ConfigError, match=r"'w' is float64\[2, 2\], but the network has float64"):
        on_ranks(2, work)
    assert heard == [-1, -1]


def test_a_full_disk_keeps_no_part(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    on_ranks(1, lambda comm: saved(comm, tmp_path, [1]))
    monkeypatch.setattr(Disk, "sync", full)
    with pytest.raises(ConfigError, match=r"step-00000002 cannot be written: .* No space left"):
        on_ranks(1, lambda comm: saved(comm, tmp_path, [2]))
    assert [p.name for p in (tmp_path / "run" / "rank-0").iterdir()] == ["step-00000001"]


def test_names_and_numbers_that_make_no_sense(tmp_path):
    def work(comm):
        for name in ("a/b", "..", ""):
            with pytest.raises(ConfigError, match=f"must be the name of a folder, not '{name}'"):
                chainermn.create_multi_node_checkpointer(name, comm, tmp_path)
        with pytest.raises(ConfigError, match="must keep at least 1 snapshot, not 0"):
            chainermn.create_multi_node_checkpointer("a", comm, tmp_path, keep=0)
        saver = chainermn.create_multi_node_checkpointer("a", comm, tmp_path)
        for number, why in ((-1, "must be 0 or more, not -1"), (1.5, "is 1.5 but must be a whole")):
            with pytest.raises(ConfigError, match=f"the iteration of a checkpoint {why}"):
                saver.save(number, {})
        assert saver.save(np.int64(3), {}).name == "step-00000003"

    on_ranks(1, work)


def trained(comm, path, steps, every, before_save=lambda saver, count: None):
    """Data parallel training that goes on where an earlier one stopped; the weights at its end."""
    images, labels = data()
    begin, end = chainermn.scatter_index(BATCH, comm)
    with network().simple_bind(data=(end - begin, 5), label=(end - begin,)) as executor:
        params = {n: a for n, a in executor.arg_dict.items() if n.startswith("fc")}
        for name, array in params.items():
            array[:] = np.random.default_rng(len(name)).standard_normal(array.shape)
        adam = chainermn.create_multi_node_optimizer(sg.optimizer.Adam(0.05), comm)
        adam.setup(params)
        saver = chainermn.create_multi_node_checkpointer("adam", comm, path, keep=2)
        saver.maybe_load(adam.arrays())
        while adam.count < steps:
            executor.forward(is_train=True, data=images[begin:end], label=labels[begin:end])
            executor.backward()
            adam.update(executor.grad_dict)
            if adam.count % every == 0:
                before_save(saver, adam.count)
                saver.save(adam.count, adam.arrays())
        return {n: a.copy() for n, a in params.items()}


def test_facts_that_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    """The error named neither the facts nor a way out, and a part of a snapshot stayed."""

    def work(comm):
        saver = chainermn.create_multi_node_checkpointer("run", comm, tmp_path)
        with pytest.raises(ConfigError, match=r"facts about a checkpoint: .*int64 .*int\(x\)"):
            saver.save(1, {}, {"epoch": np.int64(3)})

    on_ranks(1, work)
    assert not [*tmp_path.iterdir()]


def test_a_number_among_the_arrays_is_refused(tmp_path):
    """It was an AttributeError, of the last call only: nothing can be loaded into a number."""

    def work(comm):
        saver = chainermn.create_multi_node_checkpointer("run", comm, tmp_path)
        for call in (lambda arrays: saver.save(1, arrays), saver.maybe_load):
            with pytest.raises(ConfigError, match="'loss' is of type float32 but must be an array"):
                call({"loss": np.float32(3)})

    on_ranks(1, work)
    assert not [*tmp_path.iterdir()]


def test_how_many_snapshots_are_kept_is_a_whole_number(tmp_path):
    """A TypeError came after the first save."""
    make = chainermn.create_multi_node_checkpointer
    with pytest.raises(ConfigError, match=r"the number of snapshots .* is 1.5 but must be a whole"):
        on_ranks(1, lambda comm: make("run", comm, tmp_path, keep=1.5))


def test_training_goes_on_with_the_same_bits(tmp_path):
    """Parameters, optimizer and its count, also after a stop between two snapshots."""
    want = on_ranks(2, lambda comm: trained(comm, tmp_path / "a", 9, 2))
    on_ranks(2, lambda comm: trained(comm, tmp_path / "b", 5, 2))
    got = on_ranks(2, lambda comm: trained(comm, tmp_path / "b", 9, 2))
    for rank in range(2):
        assert {n: a.tobytes() for n, a in got[rank].items()} == {
            n: a.tobytes() for n, a in want[rank].items()
        }
