"""Text of others, such as names in files, made safe to show on a terminal."""

from __future__ import annotations


def visible(text: str, limit: int = 0) -> str:
    """Return a text of the user's as one line without control characters.

    Args:
        text: Any text.
        limit: The most characters to return, of which "..." in the middle stands for the rest; 0:
            any number.

    >>> visible("a name\n\x1b[2J"), visible("0123456789", 7)
    ('a name\\n\\x1b[2J', '01...89')
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    if limit and len(text) > limit:
        half = (limit - 3) // 2
        text = f"{text[: limit - 3 - half]}...{text[len(text) - half :]}"
    return text


def visible_lines(text: str) -> str:
    """Return a text of several lines without any other control characters."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))
