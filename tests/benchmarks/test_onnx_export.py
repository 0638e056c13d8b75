"""The network of every example, exported: ONNX Runtime computes what the reference computes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from benchmarks.parity.onnx_export import CLOSE, EXAMPLES, compare


@pytest.mark.every(8)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_exported_example_computes_the_same(name, tmp_path):
    found = compare(EXAMPLES[name](True), str(tmp_path / "model.onnx"))
    assert max(found.difference, found.twice, found.back) < CLOSE
