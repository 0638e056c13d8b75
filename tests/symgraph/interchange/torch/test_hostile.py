"""Files that are no PT2 archives, or not whole or harmless ones: one line that names the file."""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

import symgraph as sg
from symgraph.core.errors import ConfigError, SymgraphError
from tests.helpers.torch_files import DATA

WHOLE = (DATA / "vgg_block.pt2").read_bytes()
MODEL, WEIGHTS = "vgg_block/models/model.json", "vgg_block/data/weights/model_weights_config.json"


def members() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as whole:
        return {name: whole.read(name) for name in whole.namelist()}


def packed(table: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as new:
        for name, content in table.items():
            new.writestr(name, content)
    return target.getvalue()


def edited(name: str, edit: Callable[[Any], object]) -> bytes:
    """The archive with one of its JSON documents changed."""
    table = members()
    layout = json.loads(table[name])
    edit(layout)
    return packed(table | {name: json.dumps(layout).encode()})


def weight(**changes: Any) -> bytes:
    """The archive with other facts about the first weight."""

    def edit(layout: Any) -> None:
        entry = layout["config"]["features.0.weight"]
        for key, value in changes.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value

    return edited(WEIGHTS, edit)


def graph(edit: Callable[[Any], object]) -> bytes:
    return edited(MODEL, lambda layout: edit(layout["graph_module"]["graph"]))


def ints(*numbers: int) -> list[dict[str, int]]:
    return [{"as_int": n} for n in numbers]


def test_the_archive_is_whole(tmp_path):
    """The cases below would prove nothing if this one were refused."""
    (tmp_path / "net.pt2").write_bytes(packed(members()))
    network, parameters, _ = sg.from_torch(tmp_path / "net.pt2")
    assert {*network.list_arguments()} == {*parameters, "data", "labels"}


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not a file of torch.export.save: File is not a zip file"),
    "text": (lambda: b"hello", "not a file of torch.export.save: File is not a zip file"),
    "pickle": (lambda: pickle.dumps({"a": 1}), "not a zip file"),
    "truncated": (lambda: WHOLE[: len(WHOLE) // 2], "not a zip file"),
    "another zip": (lambda: packed({"a/b.txt": b""}), "it has 0 members models/..json"),
    "two networks": (
        lambda: packed(members() | {"vgg_block/models/other.json": b"{}"}),
        "it has 2 members models/..json",
    ),
    "bomb": (
        lambda: packed(members() | {MODEL: b" " * (1 << 24)}, zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "big-endian": (lambda: packed(members() | {"vgg_block/byteorder": b"big"}), "little-endian"),
    "damaged bytes": (lambda: WHOLE.replace(b"features.0.weight", b"featureX.0.weight"), "damaged"),
    "no JSON": (lambda: packed(members() | {MODEL: b"{"}), "not valid JSON at column"),
    "deep JSON": (lambda: packed(members() | {MODEL: b"[" * 200_000}), "nested too deeply"),
    "huge number": (lambda: packed(members() | {MODEL: b"1" * 9999}), "not a network in JSON"),
    "other schema": (
        lambda: edited(MODEL, lambda m: m["schema_version"].update(major=9)),
        "only 8.x is known",
    ),
    "wrong kind": (lambda: edited(MODEL, lambda m: m.update(graph_module=[])), "'graph_module'"),
    "weight away": (
        lambda: packed({n: c for n, c in members().items() if not n.endswith("weight_0")}),
        "has no member 'vgg_block/data/weights/weight_0'",
    ),
    "path": (
        lambda: weight(path_name="../../../../etc/passwd"),
        "has no member 'vgg_block/data/weights/../../../../etc/passwd'",
    ),
    "absolute path": (lambda: weight(path_name="/etc/passwd"), "has no member"),
    "pickled weight": (lambda: weight(use_pickle=True), "is pickled, which is never read"),
    "long weight": (lambda: weight(sizes=ints(2**40, 3, 3, 3)), "is longer than its bytes"),
    "repeated weight": (
        lambda: weight(sizes=ints(2**40), strides=ints(0)),
        "is larger than its bytes",
    ),
    "overflow": (lambda: weight(sizes=ints(2**62)), "has a size or stride"),
    "negative stride": (lambda: weight(strides=ints(-1, 1, 1, 1)), "has a size or stride"),
    "negative offset": (lambda: weight(storage_offset={"as_int": -1}), "has a size or stride"),
    "sparse": (lambda: weight(layout=1), "is sparse"),
    "bfloat16": (lambda: weight(dtype=13), "type bfloat16 are not supported"),
    "other shape": (lambda: weight(sizes=ints(8, 3, 9), strides=ints(27, 9, 1)), "in the network"),
    "unknown operators": (
        lambda: graph(
            lambda g: [
                n.update(target=f"torch.ops.aten.x{i}.default") for i, n in enumerate(g["nodes"])
            ]
        ),
        "operators are not supported: aten.x0.default .'conv2d', 1 in all.; aten.x1.default",
    ),
    "other code": (
        lambda: graph(lambda g: g["nodes"][0].update(target="os.system")),
        r"1 operator is not supported: os.system .* or export it with program.run_decompositions",
    ),
    "other code, decomposed": (
        lambda: edited(
            MODEL,
            lambda m: (
                m.update(verifiers=["ATEN"]),
                m["graph_module"]["graph"]["nodes"][0].update(target="os.system"),
            ),
        ),
        r"1 operator is not supported: os.system \('conv2d', 1 in all\); write .* with others$",
    ),
    "no_grad": (
        lambda: graph(
            lambda g: g["nodes"][0].update(
                target="torch.ops.higher_order.wrap_with_set_grad_enabled"
            )
        ),
        r"torch.no_grad\(\) \('conv2d'\) is not supported: write .detach\(\)",
    ),
    "cycle": (lambda: graph(lambda g: g["nodes"].reverse()), "is read before it is made"),
    "size as code": (
        lambda: graph(
            lambda g: g["tensor_values"]["data"].update(
                sizes=[{"as_expr": {"expr_str": "__import__('os').system('true')"}}] * 4
            )
        ),
        "the size .* is not supported",
    ),
    "huge size": (
        lambda: graph(
            lambda g: g["tensor_values"]["data"].update(sizes=ints(2**39, 2**39, 2**39, 3))
        ),
        "Convolution .* does not fit",
    ),
    "bad name": (
        lambda: graph(lambda g: g["nodes"][0]["inputs"][0]["arg"].update(as_tensor={"name": 3})),
        "'name' is 3 in the JSON",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(name, tmp_path):
    make, message = CASES[name]
    path = tmp_path / "net.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile, of names that are there twice
        path.write_bytes(make())
    with pytest.raises(SymgraphError, match=message) as caught:
        sg.from_torch(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_no_file_and_no_regular_file(tmp_path):
    for path, message in ((tmp_path / "no.pt2", "no such file"), (tmp_path, "no regular file")):
        with pytest.raises(ConfigError, match=message):
            sg.from_torch(path)
    with pytest.raises(ConfigError, match="no regular file"):
        sg.from_torch("/dev/zero")


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    """The example inputs are a pickle, which need not even be one."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    table = members()
    table["vgg_block/data/sample_inputs/model.pt"] = b"cos\nsystem\n(S'false'\ntR."
    (tmp_path / "net.pt2").write_bytes(packed(table))
    sg.from_torch(tmp_path / "net.pt2")
