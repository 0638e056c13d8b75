"""What users' names can do to messages: nothing but be read."""

from __future__ import annotations

import io

import pytest

from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.visible import visible, visible_lines
from symgraph.frontend import sym


def test_control_characters_are_shown_and_not_obeyed():
    assert visible("a\x1b[2J\r\n\t\x00b\u202e\x9b") == r"a\x1b[2J\r\n\t\x00b\u202e\x9b"
    assert visible("µ 网络 ▒") == "µ 网络 ▒"
    assert visible("\udcff") == r"\udcff"
    assert visible_lines("a\x07\nb\r") == "a\\x07\nb\\r"


@pytest.mark.parametrize("limit", [4, 5, 10, 11])
def test_long_text_keeps_both_ends(limit):
    text = visible("0123456789ab", limit)
    assert len(text) == limit
    assert "..." in text
    assert visible("0123", limit) == "0123"


def test_messages_escape_and_shorten_names():
    """Names of 3,000 characters, escapes and line breaks came out raw."""
    x = sym.Variable("x")
    bad = sym.FullyConnected(x, num_hidden=3, name="n\x1b[31m\n" + "m" * 3000)
    with pytest.raises(ShapeError) as raised:
        bad.infer_shape(x=(2, 3), **{f"{bad.name}_weight": (5, 5)})
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 1500
    assert r"n\x1b[31m\n" in message


def test_a_message_may_list_things_on_lines_of_their_own():
    assert str(GraphError("stuck:\n  a\x00\n  b\nc")) == "stuck:\n  a\\x00\n  b\\nc"


def test_a_long_message_keeps_its_beginning_and_end():
    message = str(GraphError("begin " + "word " * 3000 + "end"))
    assert len(message) == 4000
    assert (message[:5], message[-3:]) == ("begin", "end")


def test_console_and_pictures_show_no_control_characters():
    """ESC was raw in operators.csv, nodes.csv and once in index.html."""
    from partitioner.views.drawing import quoted, svg_document
    from symgraph.app.console import Console

    stream = io.StringIO()
    console = Console(stream)
    console.line("a\x1b[2J")
    console.table("t\x1b", ["name"], [["b\x1b\n"]])
    document = svg_document(1, 1, ["<title>\x1b</title>"], font_size=8, tip_size=8)
    assert "\x1b" not in stream.getvalue() + document + quoted("\x1b")
    assert r"b\x1b\n" in stream.getvalue()
