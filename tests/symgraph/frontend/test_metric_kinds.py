"""More metrics: values by hand, two running sums, and what a module's outputs they look at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, ShapeError
from symgraph.frontend.metric import (
    F1,
    MAE,
    MSE,
    RMSE,
    Accuracy,
    CompositeEvalMetric,
    CustomMetric,
    EvalMetric,
    Loss,
    NegativeLogLikelihood,
    TopKAccuracy,
    create,
)
from symgraph.frontend.metric import np as of_numpy

SCORES = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.3, 0.4, 0.3]])


def test_top_k():
    metric = TopKAccuracy(2)
    metric.update(np.array([1.0, 2.0, 1.0]), SCORES)
    assert metric.get() == ("top_k_accuracy_2", 2 / 3)
    with pytest.raises(GraphError, match="top_k is 1; use Accuracy"):
        create("top_k_acc", top_k=1)


def test_f1_is_of_all_batches_together():
    metric = F1()
    for truth, found in (([1, 1], [1, 0]), ([0, 1], [1, 1])):
        metric.update(np.array(truth), np.eye(2)[found])
    precision = recall = 2 / 3
    assert metric.get()[1] == pytest.approx(2 * precision * recall / (precision + recall))
    with pytest.raises(ShapeError, match=r"scores of two classes, not \(3, 3\)"):
        metric.update(np.array([0, 1, 1]), SCORES)


@pytest.mark.parametrize(
    ("metric", "want"), [(MAE(), 2.0), (MSE(), 14 / 3), (RMSE(), math.sqrt(14 / 3))]
)
def test_differences_are_averaged_over_elements_whatever_the_batches(metric, want):
    metric.update(np.array([1.0, 2.0]), np.array([[2.0], [4.0]]))
    metric.update(np.array([3]), np.array([[0.0]]))
    assert metric.get()[1] == pytest.approx(want)
    with pytest.raises(ShapeError, match=r"labels \(2,\) do not fit predictions \(1,\)"):
        metric.update(np.zeros(2), np.zeros(1))


def test_losses_and_likelihoods():
    loss, nll = Loss(), NegativeLogLikelihood()
    loss.update([], [np.array([1.0, 3.0]), np.array([[5.0]])])
    assert loss.get() == ("loss", 3.0)
    nll.update(np.array([2, 0]), SCORES[:2])
    assert nll.get() == ("nll-loss", pytest.approx(-np.log(0.7 * 0.5) / 2))


def test_functions_are_metrics():
    metric = create(lambda label, pred: float(np.abs(label - pred).max()))
    metric.update([np.zeros(2), np.ones(2)], [np.ones(2), np.ones(2)])
    assert metric.get() == ("custom(<lambda>)", 0.5)
    pair = CustomMetric(lambda label, pred: (label.sum(), label.size), "sum", True)
    pair.update(np.array([1.0, 2.0]), [np.zeros(2), np.zeros(2)])
    assert pair.get() == ("sum", 1.5)


def test_a_function_of_numpy_arrays():
    """`mx.metric.np` of MXNet's examples was the module numpy."""

    def errors(label, pred):
        return float((label != pred).sum())

    metric = of_numpy(errors, allow_extra_outputs=True)
    metric.update(np.array([1, 2]), [np.array([1, 3]), np.zeros(2)])
    assert metric.get() == ("errors", 1.0)


class Wrong(EvalMetric):
    """As users of MXNet write them."""

    def __init__(self):
        super().__init__("wrong")

    def reset(self):
        self.sum_metric, self.num_inst = 0.0, 0

    def update(self, labels, preds):
        for label, pred in zip(labels, preds, strict=True):
            self.sum_metric += float((label != pred).sum())
            self.num_inst += label.size


def test_a_metric_that_adds_up_by_itself():
    """It could not be made, and had no global value."""
    metric = create([Wrong(), "acc"])
    metric.update([np.array([1, 2, 3])], [np.array([1, 0, 0])])
    assert metric.get_global_name_value() == [("wrong", 2 / 3), ("accuracy", 1 / 3)]


def test_a_metric_without_a_measure_says_so():
    with pytest.raises(NotImplementedError, match=r"'mine': EvalMetric implements neither measure"):
        EvalMetric("mine").update(np.zeros(1), np.zeros(1))


def test_a_composite_metric_grows_and_has_lists():
    """`add` of MXNet's documentation took a sum and a count, and `get` had none."""
    metric = CompositeEvalMetric()
    for child in ("acc", MSE()):
        metric.add(child)
    metric.update(np.array([1, 2]), np.array([1.0, 4.0]))
    assert metric.get() == metric.get_global() == (["accuracy", "mse"], [0.5, 2.0])


@pytest.mark.parametrize("metric", [None, 3, MSE])
def test_what_is_no_metric(metric):
    with pytest.raises(GraphError, match="is not a metric: pass one such as Accuracy"):
        create(metric)


def test_the_local_sum_begins_anew_and_the_global_one_goes_on():
    metric = CompositeEvalMetric(["acc", create("mse")])
    metric.update(np.array([2, 1, 1]), np.array([2.0, 1.0, 3.0]))
    metric.reset_local()
    assert [math.isnan(value) for _, value in metric.get_name_value()] == [True, True]
    metric.update(np.array([2]), np.array([2.0]))
    assert metric.get_name_value() == [("accuracy", 1.0), ("mse", 0.0)]
    assert metric.get_global_name_value() == [("accuracy", 0.75), ("mse", 1.0)]
    metric.reset()
    assert math.isnan(metric.get_global_name_value()[0][1])


def test_a_metric_looks_at_the_outputs_it_names():
    metric = create(["acc", Accuracy(output_names=["b_output"], label_names=["b_label"])])
    labels = {"a_label": np.array([0]), "b_label": np.array([1])}
    outputs = {"a_output": np.array([[1.0, 0.0]]), "b_output": np.array([[1.0, 0.0]])}
    metric.update_dict(labels, outputs)
    assert metric.get_name_value() == [("accuracy", 0.5), ("accuracy", 0.0)]
    with pytest.raises(GraphError, match="metric 'accuracy': no output 'c'; known: 'a_output'"):
        Accuracy(output_names=["c"]).update_dict(labels, outputs)
    with pytest.raises(ShapeError, match="choose with output_names="):
        Accuracy().update_dict({"a_label": np.array([0])}, outputs)
