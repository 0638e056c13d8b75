"""More metrics: values by hand, two running sums, and what a module's outputs they look at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.errors import GraphError, ShapeError
from symgraph.metric import (
    F1,
    MAE,
    MSE,
    RMSE,
    Accuracy,
    CompositeEvalMetric,
    CustomMetric,
    Loss,
    NegativeLogLikelihood,
    TopKAccuracy,
    create,
)

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
