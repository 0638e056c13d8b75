"""The choice of what multiplies: by name, by measurement, and what then runs."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from runtime.backends.bodies import bind_call
from runtime.backends.cpu import choice
from runtime.backends.cpu.blas import BACK_ENDS
from runtime.backends.cpu.choice import OWN, Choice, chosen, fastest, named, use_blas
from runtime.backends.cpu.gemm import available
from runtime.backends.device.table import CallContext, KernelCall
from symgraph.core.errors import ConfigError
from symgraph.core.params import parse_params
from symgraph.core.registry import Env, find
from tests.fakes.fake_mkl import fake_mkl

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MKL = Choice("mkl", "mkl", "mkl", "mkl")


@pytest.fixture
def products(monkeypatch):
    """The dtypes of the products that a stand-in for MKL has made."""
    library, made = fake_mkl()
    monkeypatch.setitem(BACK_ENDS, "mkl", library)
    return made


@pytest.fixture
def unsettled(monkeypatch, tmp_path):
    """The file of the measurement, on a machine that has none yet."""
    monkeypatch.setattr(choice, "_settled", {})
    monkeypatch.setattr(choice, "_file", lambda: tmp_path / "blas.json")
    return tmp_path / "blas.json"


# -- names ---------------------------------------------------------------------------------------


def test_a_name_holds_inside(products):
    outside = chosen()
    with use_blas("mkl") as found:
        assert found == chosen() == MKL
        assert str(found) == "mkl 0 (few rows, many rows, weight gradients, bfloat16)"
        with use_blas("openblas"):
            assert chosen() == named("openblas")
        assert chosen() == MKL
    assert chosen() == outside


def test_of_several_back_ends_each_says_what_it_is_for(products):
    text = str(Choice("packed", "openblas", "mkl", "packed"))
    numpys = BACK_ENDS["openblas"].describe()
    assert text == f"packed (few rows, bfloat16), {numpys} (many rows), mkl 0 (weight gradients)"


def test_mistakes(monkeypatch, products):
    with pytest.raises(ConfigError, match=r"blas: 'mlk': did you mean 'mkl'\?"), use_blas("mlk"):
        pass
    absent = BACK_ENDS["mkl"]._replace(installed=lambda: False)
    monkeypatch.setitem(BACK_ENDS, "mkl", absent)
    with (
        pytest.raises(ConfigError, match=r"blas: mkl: .* pip install 'symgraph\[mkl\]'"),
        use_blas("mkl"),
    ):
        pass


# -- the measurement -----------------------------------------------------------------------------


def test_the_usual_back_end_stays_unless_another_is_clearly_faster():
    assert fastest({"openblas": 1.0, "mkl": 0.97}) == "openblas"
    assert fastest({"openblas": 1.0, "mkl": 0.9}) == "mkl"
    assert fastest({"packed": 1.0, "openblas": 1.4, "mkl": 0.8}) == "mkl"


def test_without_mkl_nothing_is_measured(monkeypatch, unsettled):
    absent = BACK_ENDS["mkl"]._replace(installed=lambda: False)
    monkeypatch.setitem(BACK_ENDS, "mkl", absent)
    assert choice.choice_of("auto") == named("openblas")
    assert not unsettled.exists()


def test_one_library_is_chosen_for_all_kinds():
    """Products on several threads took 1.6 times as long where two took turns."""
    times = {"openblas": 1.0, "mkl": 0.9}
    own = {"packed": 1.2, **times}
    found = {"few": own, "many": times, "turned": {"openblas": 1.0, "mkl": 1.05}, "bfloat16": own}
    assert choice.best(found) == named("openblas")._replace(few="openblas", bfloat16="openblas")
    found["bfloat16"] = {"mkl": 1.0}
    assert choice.best(found).bfloat16 == "packed"
    found["turned"] = times
    assert choice.best(found) == MKL


def test_auto_is_measured_once_for_a_machine(monkeypatch, unsettled, products):
    choice.choice_of("auto")
    assert {"float32", "uint16"} <= {*products}
    found = json.loads(unsettled.read_text())
    assert [*found] == [*Choice._fields]
    assert all(next(iter(times.values())) == 1.0 for times in found.values())
    found["few"] = {"packed": 3.0, "openblas": 1.0, "mkl": 2.0}
    found["many"], found["turned"] = {"openblas": 1.0, "mkl": 1.2}, {"openblas": 1.0, "mkl": 0.6}
    unsettled.write_text(json.dumps(found))
    monkeypatch.setattr(choice, "_settled", {})
    products.clear()
    got = choice.choice_of("auto")
    assert (got.few, got.many, got.turned, products) == ("mkl", "mkl", "mkl", [])
    assert "weight gradients: openblas 1, mkl 0.6" in choice.figures_text()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "[]", '{"few": {"mkl": 1}}', '{"few": 1}'])
def test_a_damaged_file_is_measured_anew(text, unsettled, products):
    unsettled.write_text(text)
    choice.choice_of("auto")
    assert products
    assert [*json.loads(unsettled.read_text())] == [*Choice._fields]


def test_a_folder_that_is_read_only_is_no_error(monkeypatch, unsettled, products, tmp_path):
    monkeypatch.setattr(choice, "_file", lambda: tmp_path / "missing" / "blas.json")
    assert {*choice.choice_of("auto")} <= {*BACK_ENDS, *OWN}
    assert products


# -- what runs -----------------------------------------------------------------------------------


def run(op, ins, packs, out_dtype=None, **attrs):
    """The result of a kernel on parameters, and that of the operator's own computation."""
    found = find(op)
    attrs = parse_params(op, "test", found.params, attrs)
    wanted = found.compute(Env(), attrs, *[x.astype(np.float64) for x in ins])
    out = np.full(wanted.shape, 99, out_dtype or ins[0].dtype)

    def pack(index, transposed):
        packs.append(index)
        raise AssertionError("MKL takes weights as they are")

    weights = tuple(i > 0 for i in range(len(ins)))
    bound = bind_call(op, KernelCall(attrs, tuple(ins), (out,), CallContext(), weights, pack))
    bound.function(*bound.args)
    return out.astype(np.float64), wanted


CASES = {
    "FullyConnected": ([(20, 70), (33, 70), (33,)], {"num_hidden": 33}),
    "FullyConnected of many": ([(300, 7, 10), (33, 70), (33,)], {"num_hidden": 33}),
    "_fc_grad_data": ([(20, 33), (33, 70)], {"shape": (20, 7, 10)}),
    "_fc_grad_weight": ([(20, 33), (20, 7, 10)], {}),
    "dot": ([(20, 70), (70, 33)], {}),
    "dot turned": ([(70, 20), (33, 70)], {"transpose_a": True, "transpose_b": True}),
    "Convolution": ([(8, 16, 8, 8), (16, 16, 3, 3), (16,)], {"kernel": (3, 3), "num_filter": 16}),
    "Convolution 5x5": ([(2, 3, 9, 9), (4, 3, 5, 5), (4,)], {"kernel": (5, 5), "num_filter": 4}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64", BFLOAT16], ids=str)
def test_every_product_goes_by_the_chosen_library(name, dtype, products):
    shapes, attrs = CASES[name]
    rng = np.random.default_rng(1)
    ins = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    with use_blas("mkl"):
        got, wanted = run(name.split()[0], ins, [], **attrs)
    low = dtype == BFLOAT16
    np.testing.assert_allclose(got, wanted, rtol=2**-7 if low else 1e-4, atol=2e-1 if low else 1e-4)
    assert products
    if low and available() and not name.startswith("Conv"):
        assert {*products} == {"uint16"}


@pytest.mark.skipif(not available(), reason="needs a CPU with AVX-512 or AVX2 and FMA")
@pytest.mark.parametrize("out", [BFLOAT16, "float32"], ids=str)
def test_products_of_bfloat16_are_rounded_once_after_the_bias(out, products):
    rng = np.random.default_rng(1)
    ins = [rng.standard_normal(s).astype(BFLOAT16) for s in ((5, 40), (19, 40), (19,))]
    with use_blas("mkl"):
        got, _ = run("FullyConnected", ins, [], out, num_hidden=19)
    x, weight, bias = (a.astype("float32") for a in ins)
    wanted = (x @ weight.T + bias).astype(BFLOAT16).astype("float64")
    np.testing.assert_allclose(got, wanted, rtol=2**-8)
    np.testing.assert_array_equal(got, got.astype(BFLOAT16).astype("float64"))
