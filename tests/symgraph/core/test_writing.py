"""Tests of writing files."""

import pytest

from symgraph.core.errors import ConfigError, RunError
from symgraph.core.writing import writing


@pytest.mark.parametrize(
    ("path", "error", "reason"),
    [
        ("/dev/full", RunError, "No space left on device"),
        ("/dev/null/x", ConfigError, "Not a directory"),
        ("/", ConfigError, "Is a directory"),
    ],
)
def test_a_full_disk_fails_and_a_wrong_path_is_bad_input(path, error, reason):
    with (
        pytest.raises(error, match=f"^cannot write the page {path}: {reason}$"),
        writing(path, "cannot write the page"),
        open(path, "w") as file,
    ):
        file.write("x")
