"""The `data:` section of a config: a model of its keys for each kind of data.

The kinds are loaded by runtime/training/data/table.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, FiniteFloat

from symgraph.app.config_values import Count, ListOf
from symgraph.app.named_files import file_mistakes
from symgraph.core.yaml_check import Section, sections
from symgraph.core.yaml_lines import KeyPath
from symgraph.frontend.model import function_path

BY_TIME = "by_time"
Function = Annotated[str, AfterValidator(function_path)]


class _Text(Section):
    """Keys of all texts, on which language models are trained."""

    batch_size: Count
    """Sequences per step, over all micro-batches."""
    sequence_length: Count | None = None
    """Time steps to unroll for; the text is one stream, and batches hand on their states."""
    buckets: Annotated[tuple[Count, ...], ListOf] | None = None
    """Lengths to unroll for, such as [8, 16, 32], instead of sequence_length: each line of the text
    is a sentence, padded to the next length. The model's arguments are then sequence_length, one of
    these lengths, and ignore_label, the label of padding."""
    batches_per_step: Count = 1
    """Batches per step, which may be of different buckets."""
    micro_batches: Literal["by_bucket", "by_time"] = "by_bucket"
    """How the sentences of a training step form micro-batches. by_bucket: a batch has sentences of
    one bucket, in micro-batches of equal size. by_time: the step's sentences are sorted by length
    and cut into micro-batches so that the predicted step is the shortest, each with its own length
    and number of sentences."""
    lengths: Annotated[tuple[Count, ...], ListOf] | None = None
    """Lengths that a micro-batch by_time may have, besides the longest bucket's; null: twelve, for
    which the training text needs the fewest pads."""
    rows: Annotated[tuple[Count, ...], ListOf] | None = None
    """Sentences that a micro-batch by_time may have, such as [8, 16, 32]; null: half, once and
    twice those of a micro-batch by_bucket."""
    window: Count = 64
    """Steps whose sentences are sorted by length together, with micro_batches by_time, and cut into
    batches of similar lengths, of which each step has long and short ones."""
    vocab: Annotated[int, Field(ge=3)] = 10_000
    """Size of the vocabulary: <unk>, <eos> and the most frequent tokens."""


class StdlibTextData(_Text):
    """The source code of Python's standard library, for language models."""

    kind: Literal["stdlib_text"]
    """What the data is: stdlib_text (source code that every machine has) or text (a file), both for
    language models; arrays (files of arrays or images); python (batches from a function); random
    (values of the network's own types). Without this key: the kind that the other keys belong to,
    or else random."""


class TextData(_Text):
    """A text file, for language models."""

    kind: Literal["text"]
    """A text file, for language models."""
    path: str
    """Training text: a UTF-8 file."""
    valid_path: str | None = None
    """Held-out text; null: the last 5 % of the lines of path."""


class _Samples(Section):
    """Keys of all data that is not text."""

    batch_size: Count | None = None
    """Samples per step, over all micro-batches: the argument batch_size of the model's function;
    null: the function has no such argument."""


class RandomData(_Samples):
    """Random values, of the network's own types, for plans, profiles and trials of speed."""

    kind: Literal["random"]
    """Random values: normal numbers, and ids within the range of what reads them."""
    batches: Count = 100
    """Batches per epoch."""


class PythonData(_Samples):
    """Batches from a function."""

    kind: Literal["python"]
    """Batches from a function."""
    function: Function
    """Function that is called for every epoch, package.module:function or file.py:function, with
    args, and with batch_size and epoch if it takes them. It returns an iterable of batches, dicts
    from the network's inputs to arrays; or a function of the epoch that does."""
    valid: Function | None = None
    """The same for the held-out part; null: there is none."""
    args: Mapping[str, Any] = {}
    """Keyword arguments of both functions."""
    batches: Count | None = None
    """Batches per epoch; null: as many as the iterable has, counted before training if the run is
    limited by epochs."""


class ArraysData(_Samples):
    """Arrays in files, with the samples along the first axis."""

    kind: Literal["arrays"]
    """Arrays in files, with the samples along the first axis."""
    path: str | None = None
    """File or folder with an array for each input of the network, by its name: .npz, .safetensors,
    a folder of .npy files, or of CIFAR's .bin or MNIST's IDX files (whose arrays are called data
    and label)."""
    files: Mapping[str, str] = {}
    """Input of the network -> its file (.npy, or IDX, which may be compressed: .gz), instead of
    path."""
    valid_path: str | None = None
    """The same as path for the held-out part."""
    valid_files: Mapping[str, str] = {}
    """The same as files for the held-out part."""
    held_out: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.1
    """Share of the samples to hold out, if there are no files of a held-out part."""
    shuffle: bool = True
    """Whether each epoch has the samples in another order."""
    scale: Mapping[str, FiniteFloat] = {}
    """Input -> factor of its values, such as {data: 0.00392156862745098} for bytes of images."""


DEFAULT = "random"
DataConfig = Annotated[
    StdlibTextData | ArraysData | TextData | PythonData | RandomData, Field(discriminator="kind")
]
TextConfig = StdlibTextData | TextData
KINDS: Mapping[str, type[Section]] = sections(get_args(DataConfig)[0])


def kind_of(keys: Collection[str]) -> str:
    """Return the kind of data that these keys belong to; `random` where several have all of them.

    Keys that no kind has are left out.
    """
    known = {key for model in KINDS.values() for key in model.model_fields}
    given = known.intersection(keys) - {"kind"}
    fitting = [kind for kind, model in KINDS.items() if given <= {*model.model_fields}]
    if DEFAULT in fitting:
        return DEFAULT
    return fitting[0] if fitting else next(iter(KINDS))


def buckets_of(data: Section) -> tuple[int, ...] | None:
    """Return the lengths to unroll for, where batches have several; None where they have one."""
    return data.buckets if isinstance(data, _Text) else None


def is_by_time(data: Section) -> bool:
    """Return whether the micro-batches of a training step are chosen by predicted time."""
    return isinstance(data, _Text) and data.micro_batches == BY_TIME


def rows_of(data: Section, micro_batches: int) -> tuple[int, ...]:
    """Return the numbers of sentences that a micro-batch by_time may have, in rising order."""
    assert isinstance(data, _Text), "other data has no micro-batches by_time"
    usual = -(-data.batch_size // micro_batches)
    return data.rows or tuple(sorted({max(1, usual // 2), usual, 2 * usual}))


def batches_per_step(data: Section) -> int:
    """Return the number of batches of a training step."""
    return data.batches_per_step if isinstance(data, _Text) else 1


def data_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield mistakes that types do not show, from unchecked keys with possibly more mistakes."""
    kind = data.get("kind")
    if kind in ("text", "stdlib_text"):
        yield from _text_mistakes(data)
    if kind == "arrays":
        yield from _arrays_mistakes(data)
    for key in ("path", "valid_path"):
        if isinstance(path := data.get(key), str):
            yield from file_mistakes(("data", key), path, folder=kind == "arrays")
    for key in ("files", "valid_files"):
        if isinstance(files := data.get(key), dict):
            for name, path in files.items():
                if isinstance(path, str):
                    yield from file_mistakes(("data", key, name), path)


def _text_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    length_keys = [key for key in ("sequence_length", "buckets") if data.get(key) is not None]
    if len(length_keys) == 2:
        yield ("data", "buckets"), "excludes data.sequence_length; remove one of them"
    if not length_keys:
        yield ("data",), "sequence_length or buckets is missing: the time steps to unroll for"
    defaults = {name: field.default for name, field in _Text.model_fields.items()}
    for key in ("batches_per_step", "micro_batches"):
        if "buckets" not in length_keys and data.get(key, defaults[key]) != defaults[key]:
            yield ("data", key), "applies to data.buckets; remove this key"
    for key in ("lengths", "rows", "window"):
        if data.get("micro_batches") != BY_TIME and data.get(key, defaults[key]) != defaults[key]:
            yield ("data", key), "applies to data.micro_batches: by_time; remove this key"


def _arrays_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for path, files in (("path", "files"), ("valid_path", "valid_files")):
        if data.get(path) is not None and data.get(files):
            yield ("data", files), f"excludes data.{path}; remove one of them"
    if data.get("path") is None and not data.get("files"):
        yield ("data", "kind"), "kind arrays needs data.path or data.files: what to read"
