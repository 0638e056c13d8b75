"""MXNet's own example scripts with symgraph in MXNet's place, on made-up data.

`python -m benchmarks.parity.mxnet_tests --mxnet FOLDER --examples` runs them, in processes with a
limit. A script's text is changed as `Example.edits` says: `gpu` to `cpu`, sizes and epochs to small
ones, and what Python 3, today's numpy or numba no longer take. FOLDER must be MXNet 1.2.1, the last
release with all of them.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.parity import mxnet_data as data
from benchmarks.parity.mxnet_adapter import install

ROOT = Path(__file__).parents[2]
GPU = ((r"\bgpu\(", "cpu("),)
EPOCHS = ((r"\b(num_epochs?|n_epoch|num_round)( *= *)\d+", r"\g<1>\g<2>1"),)
PTB = ("--num-epochs", "1", "--num-hidden", "20", "--num-embed", "20", "--batch-size", "16")
MNIST = ("--num-epochs", "1")
SMALL_LSTM = (
    (r"\) / self\.batch_size", ") // self.batch_size"),
    (r"num_hidden = \d+", "num_hidden = 20"),
    (r"num_embed = \d+", "num_embed = 20"),
    (r"num_lstm_layer = \d+", "num_lstm_layer = 2"),
    (r"batch_size = 32\*N|batch_size = 128", "batch_size = 16"),
    (r"N = 8", "N = 1"),
    (r"range\(4\)", "range(1)"),
    (r"buckets = \[.*\]", "buckets = [16, 36]"),
)


class Example(NamedTuple):
    """A script below example/, its arguments, changes of texts in its folder, and its data."""

    script: str
    arguments: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    write: Callable[[Path], None] | None = None
    #: The folder of the data, from that of the script.
    where: str = "data"
    #: What its last line looks like if it has learnt its data.
    learns: str = ""


IMAGENET = (
    *("--benchmark", "1", "--num-epochs", "1", "--batch-size", "4", "--num-examples", "8"),
    *("--num-classes", "10", "--kv-store", "local"),
)
TEN_EPOCHS = ((r"\b(num_epoch|n_epoch)( *= *)1\b", r"\g<1>\g<2>10"),)
LEARNT = r"ccuracy\W+(1\.0|0\.[89]\d|100\.|9\d\.)"
TOY = ((r"\(100000,", "(1280,"), (r"\(1000,", "(256,"))
EXAMPLES = (
    Example("rnn/bucketing/lstm_bucketing.py", PTB, (), data.write_ptb),
    Example("rnn/bucketing/cudnn_lstm_bucketing.py", PTB, (), data.write_ptb),
    Example(
        "cnn_text_classification/text_cnn.py",
        ("--num-epochs", "1", "--num-embed", "20"),
        (),
        data.write_reviews,
        "data/rt-polaritydata",
    ),
    Example(
        "image-classification/train_mnist.py",
        MNIST,
        ((r"np\.fromstring", "np.frombuffer"),),
        data.write_mnist_gz,
        learns=LEARNT,
    ),
    Example(
        "image-classification/train_mnist.py",
        (*MNIST, "--network", "lenet"),
        ((r"np\.fromstring", "np.frombuffer"),),
        data.write_mnist_gz,
        learns=LEARNT,
    ),
    Example("nce-loss/toy_softmax.py", (), TOY),
    Example("nce-loss/toy_nce.py", (), TOY),
    Example("model-parallel/lstm/lstm_ptb.py", (), SMALL_LSTM, data.write_ptb),
    Example(
        "model-parallel/matrix_factorization/train.py",
        ("--num-epoch", "1"),
        ((r"71569", "500"), (r"65135", "300")),
        data.write_ratings,
        ".",
    ),
    Example("multi-task/example_multi_task.py", (), (), data.write_few_digits),
    Example(
        "bi-lstm-sort/lstm_sort.py",
        ("--cpu", "--end-range", "150"),
        ((r"range\(1000000\)", "range(5000)"), *SMALL_LSTM[:3]),
    ),
    Example("rnn/old/lstm_bucketing.py", (), SMALL_LSTM, data.write_ptb),
    Example("rnn/old/gru_bucketing.py", (), SMALL_LSTM, data.write_ptb),
    Example("rnn/old/rnn_cell_demo.py", (), SMALL_LSTM, data.write_ptb),
    Example("svm_mnist/svm_mnist.py", (), ((r"60000", "640"), *TEN_EPOCHS), learns=LEARNT),
    Example("module/mnist_mlp.py", (), TEN_EPOCHS, data.write_mnist, learns=LEARNT),
    Example("module/sequential_module.py", (), TEN_EPOCHS, data.write_mnist, learns=LEARNT),
    Example(
        "module/python_loss.py",
        (),
        (*TEN_EPOCHS, (r"@numba\.jit", "@numba.jit(forceobj=True)")),
        data.write_mnist,
        learns=LEARNT,
    ),
    Example(
        "autoencoder/mnist_sae.py",
        (
            *("--pretrain-num-iter", "20", "--finetune-num-iter", "20"),
            *("--num-units", "784,50,10", "--batch-size", "64"),
        ),
        ((r"60000", "640"),),
    ),
)
# Beyond the 19 that issue 25 names.
OTHERS = (
    Example("numpy-ops/custom_softmax.py", (), (), data.write_few_digits),
    Example("numpy-ops/numpy_softmax.py", (), (), data.write_few_digits),
    Example("numpy-ops/weighted_logistic_regression.py"),
    Example("python-howto/multiple_outputs.py", (), ((r"print (group.*)", r"print(\g<1>)"),)),
    Example("python-howto/monitor_weights.py", (), (), data.write_few_digits),
    Example("python-howto/debug_conv.py"),
    Example("stochastic-depth/sd_mnist.py", (), (), data.write_few_digits, learns=LEARNT),
    Example(
        "dsd/mlp.py",
        (
            *("--pruning_switch_epoch", "1,2", "--weight_sparsity", "0,50"),
            *("--bias_sparsity", "0,0"),
        ),
        ((r"60000\.0", "2000.0"),),
        data.write_few_digits,
    ),
    Example("rnn-time-major/rnn_cell_demo.py", (), SMALL_LSTM, data.write_ptb),
    Example("memcost/inception_memcost.py", (), ((r"batch_size = 32", "batch_size = 1"),)),
    Example(
        "image-classification/train_imagenet.py",
        (*IMAGENET, "--image-shape", "3,28,28", "--num-layers", "20"),
    ),
    Example(
        "image-classification/train_imagenet.py",
        (*IMAGENET, "--image-shape", "3,28,28", "--network", "inception-bn"),
    ),
    Example(
        "image-classification/train_imagenet.py",
        (*IMAGENET, "--image-shape", "3,224,224", "--network", "mobilenet"),
    ),
)


def prepare(example: Example, source: Path, scratch: Path) -> Path:
    """Copy the examples, change the texts of one's folder, write its data; return the script."""
    shutil.copytree(source / "example", scratch / "example", ignore=shutil.ignore_patterns("*.jpg"))
    script = scratch / "example" / example.script
    shared = scratch / "example" / "rnn" / "old"  # whose iterator others import
    for path in sorted({*script.parent.rglob("*.py"), *shared.glob("*.py")}):
        text = path.read_text("utf-8")
        for pattern, replacement in (*GPU, *EPOCHS, *example.edits):
            text = re.sub(pattern, replacement, text)
        path.write_text(text, "utf-8")
    if example.write is not None:
        example.write(script.parent / example.where)
    return script


def run_example(example: Example, source: Path, seconds: int) -> tuple[bool, str]:
    """Run a script; return whether it ended well and learnt, and the last line that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        script = prepare(example, source, Path(folder))
        command = [sys.executable, "-m", __spec__.name, str(source), str(script)]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, *example.arguments],
                cwd=script.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            wrote = late.stdout or b""
            text = wrote.decode(errors="replace") if isinstance(wrote, bytes) else wrote
            return False, f"longer than {seconds} s; {_last(text)}"
        took = time.perf_counter() - start
        last = _last(done.stdout)
        learnt = re.search(example.learns, last) is not None
        return done.returncode == 0 and learnt, f"{took:.0f} s; {last}"


def _last(text: str) -> str:
    """Return the last line of a text that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Warning|OutOfScope)\b", line)
    ]
    return (errors or lines or [""])[-1][:160] if errors else (lines or [""])[-1][:160]


def run_all(source: Path, words: list[str], seconds: int) -> int:
    """Run the examples whose paths have one of the words, or all, and print what each did.

    Returns:
        The number of those that failed.
    """
    failed, count = 0, 0
    for example in (*EXAMPLES, *OTHERS):
        if words and not any(word in example.script for word in words):
            continue
        if not (source / "example" / example.script).exists():
            continue
        count += 1
        well, said = run_example(example, source, seconds)
        failed += not well
        called = " ".join([example.script, *example.arguments[-2:]])
        print(f"{'ran   ' if well else 'FAILED'} {called}: {said}", flush=True)
    print(f"{count - failed} of {count} examples ran")
    return failed


def _run_script(source: Path, script: Path, arguments: list[str]) -> None:
    """Run a script in this process as its own."""
    install(source)
    for name in ("requests",):  # imported to load data, which is there
        sys.modules.setdefault(name, types.ModuleType(name))
    import sklearn.datasets  # what examples load from a site that is gone

    def fetch_mldata(name: str, **_: str) -> types.SimpleNamespace:
        images, labels = data.digits(1000, 1)
        return types.SimpleNamespace(data=images.reshape(-1, 784), target=labels.astype(float))

    sklearn.datasets.fetch_mldata = fetch_mldata
    sys.path[:1] = [str(script.parent), str(script.parents[1])]
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    _run_script(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
