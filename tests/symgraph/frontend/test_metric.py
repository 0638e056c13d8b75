"""Metrics: MXNet's values, and the same values however the samples are batched."""

from __future__ import annotations

import math

import numpy as np
import pytest

from symgraph.core.errors import GraphError, ShapeError
from symgraph.frontend.metric import Accuracy, CrossEntropy, EvalMetric, Perplexity, create

PREDS = np.array([[0.3, 0.7], [0.0, 1.0], [0.4, 0.6]])
LABELS = np.array([0, 1, 1])


@pytest.mark.parametrize(
    ("metric", "name", "value"),
    [  # the examples in MXNet's documentation, computed there in float32
        (Perplexity(None), "perplexity", 1.7710976285155853),
        (Accuracy(), "accuracy", 2 / 3),
        (CrossEntropy(), "cross-entropy", 0.5715994834899902),
    ],
)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x]])
def test_documented_examples(metric, name, value, wrap):
    metric.reset()
    metric.update(wrap(LABELS), wrap(PREDS))
    assert metric.get() == (name, pytest.approx(value, rel=1e-7))
    assert metric.get_name_value() == [metric.get()]


@pytest.mark.parametrize(("dtype", "rel"), [(np.float64, 1e-13), (np.float32, 1e-6)])
@pytest.mark.parametrize("classes", [2, 7, 10_000])
def test_uniform_model_has_perplexity_of_its_vocabulary(classes, dtype, rel):
    """Case B7."""
    metric = Perplexity(ignore_label=-1)
    labels = np.array([0, 1, classes - 1, -1, -1], dtype)
    metric.update(labels, np.full((5, classes), 1 / classes, dtype))
    assert metric.num_inst == 3
    assert metric.get()[1] == pytest.approx(classes, rel=rel)


def test_perplexity_is_over_tokens_not_batches():
    """A mean of the batches' perplexities, or of their mean losses, would differ."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(5), size=12)
    labels = rng.integers(0, 5, 12)
    labels[9:] = -1
    want = math.exp(-np.log(probs[np.arange(9), labels[:9]]).mean())
    split, parts = Perplexity(-1), [Perplexity(-1), Perplexity(-1)]
    for part, rows in zip(parts, [slice(0, 8), slice(8, 12)], strict=True):
        split.update(labels[rows], probs[rows])
        part.update(labels[rows], probs[rows])
    together = Perplexity(-1)
    for part in parts:
        together.accumulate(part.sum_metric, part.num_inst)
    assert split.get()[1] == pytest.approx(want, rel=1e-12)
    assert together.get()[1] == pytest.approx(want, rel=1e-12)


def test_perplexity_takes_the_classes_along_any_axis():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), size=(2, 3))
    labels = rng.integers(0, 4, (2, 3))
    last, middle = Perplexity(None), Perplexity(None, axis=1)
    last.update(labels, probs)
    middle.update(labels, probs.transpose(0, 2, 1))
    assert (
        last.get()[1]
        == middle.get()[1]
        == pytest.approx(math.exp(-np.log(np.take_along_axis(probs, labels[..., None], -1)).mean()))
    )


def test_a_probability_of_zero_is_finite():
    metric = Perplexity(None)
    metric.update(np.array([0]), np.array([[0.0, 1.0]]))
    assert metric.get()[1] == pytest.approx(1e10)


def test_overflow_is_infinite():
    metric = Perplexity(None)
    metric.accumulate(1e6, 1)
    assert metric.get()[1] == math.inf


def test_accuracy_of_classes_and_other_axes():
    metric = Accuracy()
    metric.update(np.array([1, 2, 3]), np.array([1.0, 0.0, 3.0]))
    metric.update(np.array([[0, 1]]), np.array([[[0.9, 0.2], [0.1, 0.8]]]))
    assert (metric.sum_metric, metric.num_inst) == (4.0, 5)


@pytest.mark.parametrize("metric", [Perplexity(None), Accuracy(), CrossEntropy()])
def test_reset_and_nothing_counted(metric):
    metric.update(LABELS, PREDS)
    metric.reset()
    assert (metric.sum_metric, metric.num_inst) == (0.0, 0)
    assert math.isnan(metric.get()[1])


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_that_are_no_class_are_refused(label):
    with pytest.raises(GraphError, match=f"label {label} is not one of the classes 0 to 1"):
        Perplexity(None).update(np.array([0, label, 1]), PREDS)


@pytest.mark.parametrize("metric", [Perplexity(None), Accuracy(), CrossEntropy()])
def test_shapes_that_do_not_fit_are_refused(metric):
    with pytest.raises(ShapeError, match=r"labels \(2,\) do not fit predictions \(3, 2\)"):
        metric.update(LABELS[:2], PREDS)
    with pytest.raises(ShapeError, match="2 arrays of labels for 1 of predictions"):
        metric.update([LABELS, LABELS], [PREDS])


def test_create():
    assert isinstance(create("CE", eps=1e-8), CrossEntropy)
    assert create("Perplexity", ignore_label=0).ignore_label == 0
    made = Accuracy()
    assert create(made) is made
    with pytest.raises(GraphError, match="unknown metric 'perplexit': did you mean 'perplexity'"):
        create("perplexit")
    with pytest.raises(GraphError, match="metric 'ce': got an unexpected keyword argument 'axs'"):
        create("ce", axs=1)
    with pytest.raises(GraphError, match="missing a required argument: 'ignore_label'"):
        create("perplexity")
    with pytest.raises(TypeError, match="output_name"):
        Accuracy(output_name=["softmax_output"])


def test_several_values_may_be_a_zip():
    """What MXNet's multi-task example returns from `get`."""

    class Tasks(EvalMetric):
        def get(self):
            return zip(("a", 1.0), ("b", 2.0), strict=True)

    assert Tasks("tasks").get_global_name_value() == [("a", 1.0), ("b", 2.0)]
