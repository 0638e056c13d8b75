"""More metrics: values by hand, two running sums, and what a module's outputs they look at."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, ShapeError
from symgraph.frontend import metric as metrics
from symgraph.frontend.metric import (
    F1,
    MAE,
    MCC,
    MSE,
    PCC,
    RMSE,
    Accuracy,
    CompositeEvalMetric,
    CustomMetric,
    EvalMetric,
    Loss,
    NegativeLogLikelihood,
    PearsonCorrelation,
    TopKAccuracy,
    alias,
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


BATCHES = [([1, 0, 1, 0], [1, 0, 0, 0]), ([0, 1], [0, 1])]  # labels, predictions


@pytest.mark.parametrize(
    ("kind", "all_together", "by_batch"),
    # MXNet 1.9.1's values.
    [("f1", 0.8, 0.8333333333), ("mcc", 0.7071067812, 0.7886751346), ("pcc", 0.7071067812, None)],
)
def test_figures_of_two_classes(kind, all_together, by_batch):
    for average, want in (("micro", all_together), ("macro", by_batch)):
        if want is None:
            continue
        metric = create(kind) if average == "micro" else create(kind, average=average)
        assert math.isnan(metric.get()[1])
        for truth, found in BATCHES:
            metric.update([np.array(truth)], [np.eye(2)[found]])
        assert metric.get()[1] == pytest.approx(want)
        assert metric.num_inst == {"micro": 6, "macro": 2}[average]


def test_figures_without_a_positive():
    for metric, want in ((F1(), 0.0), (MCC(), 0.0), (PCC(), math.nan)):
        metric.update(np.zeros(3), np.eye(2)[[0, 0, 0]])
        assert metric.get()[1] == pytest.approx(want, nan_ok=True)


def test_classes_that_come_later_join_the_table():
    metric = PCC()
    metric.update(np.array([0, 1]), np.array([0, 1]))
    metric.reset_local()
    metric.update(np.array([2, 0, 1]), SCORES)
    assert metric.get()[1] == pytest.approx(1.0)
    metric.update(np.array([4, 0]), np.array([0, 4]))
    truth, found = np.array([0, 1, 2, 0, 1, 4, 0]), np.array([0, 1, 2, 0, 1, 0, 4])
    one_hot = [np.eye(5)[x] - np.eye(5)[x].mean(axis=0) for x in (truth, found)]
    want = (one_hot[0] * one_hot[1]).sum() / math.prod(np.linalg.norm(x) for x in one_hot)
    assert metric.get_global()[1] == pytest.approx(want)


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_correlation(average):
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((n, 2)), rng.standard_normal((n, 2))) for n in (5, 9)]
    metric = create("pearsonr", average=average)
    metric.update(*map(list, zip(*pairs, strict=True)))
    parts = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs]
    joined = [np.concatenate([p.ravel() for p in x]) for x in zip(*pairs, strict=True)]
    whole = np.corrcoef(*joined)[0, 1]
    assert metric.get()[1] == pytest.approx(whole if average == "micro" else np.mean(parts))
    with pytest.raises(ShapeError, match=r"labels \(2,\) do not fit predictions \(2, 2\)"):
        metric.update(np.zeros(2), np.eye(2))
    with pytest.raises(GraphError, match="average='mikro'; did you mean 'micro'"):
        PearsonCorrelation(average="mikro")


@pytest.mark.parametrize(
    "metric",
    [Accuracy(axis=0), TopKAccuracy(3), F1("two", "macro"), PCC(), create("perplexity", -1)],
)
def test_a_configuration_makes_the_same_metric(metric):
    again = create(json.dumps(metric.get_config()))
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()
    assert again.name == metric.name


def test_metrics_of_ones_own_have_names(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))

    @alias("half")
    class Halved(EvalMetric):
        def __init__(self, name="halved", **names):
            super().__init__(name, **names)

        def measure(self, label, pred):
            return pred.sum() / 2, pred.size

    both = create(["half", "halved"])
    both.update(np.zeros(2), np.ones(2))
    assert both.get() == (["halved", "halved"], [0.5, 0.5])
    assert isinstance(both.get_metric(1), Halved)
    with pytest.raises(ValueError, match="metric 2 is out of range: there are 2"):
        both.get_metric(2)


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


def test_a_metric_with_one_average_resets_it_by_itself():
    """A Speedometer put 0 where MXNet's multi-task example has a number for each task."""

    class ByTask(Wrong):
        def reset(self):
            self.sum_metric, self.num_inst = [0.0, 0.0], [0, 0]

    metric = ByTask()
    metric.sum_metric[1] = 3.0
    metric.reset_local()
    assert metric.sum_metric == [0.0, 0.0]


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
