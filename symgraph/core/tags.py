"""Tags: the keys of symbols' and nodes' attributes, and their two spellings.

The executor's own keys (`HIDDEN`) are stored as `__key__`, and only attributes spelt like that are
inherited by the variables that an operator creates: so `fc1_weight` gets the `ctx_group` of `fc1`
but not its `kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping

from symgraph.core.errors import GraphError

HIDDEN = (
    "ctx_group",
    "lr_mult",
    "wd_mult",
    "force_mirroring",
    "mirror_stage",
    "time_step",
    "shard",
    "replicate",
    "exchange",
)
MXNETS = HIDDEN[:5]  # MXNet's own, which its operators take as keyword arguments, too
SPELLINGS = {spelt: (f"__{k}__", k) for k in HIDDEN for spelt in (f"__{k}__", k)}


def hide(key: str) -> str:
    """Return the spelling under which a key is stored: `ctx_group` -> `__ctx_group__`."""
    return f"__{key}__" if key in HIDDEN else key


def canonical(attrs: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes under their stored keys.

    Raises GraphError for a value that is not a string, or two spellings with different values.
    """
    stored: dict[str, str] = {}
    for key, value in attrs.items():
        if not isinstance(value, str):
            raise GraphError(
                f"attribute {key!r} must be a string, not {type(value).__name__}: "
                f"write {key}={str(value)!r}"
            )
        if stored.setdefault(hide(key), value) != value:
            raise GraphError(
                f"attribute {key!r} is given as {stored[hide(key)]!r} and as {value!r} "
                f"under its two spellings: keep one"
            )
    return stored


def lookup(attrs: Mapping[str, str], key: str) -> str | None:
    """Return the value of a key under either spelling, or None."""
    for spelt in SPELLINGS.get(key, (key,)):
        if spelt in attrs:
            return attrs[spelt]
    return None


def both_spellings(attrs: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes, with those of the executor's keys under their plain names as well."""
    return {**attrs, **{k: attrs[hide(k)] for k in HIDDEN if hide(k) in attrs}}


def inherited(attrs: Mapping[str, str]) -> dict[str, str]:
    """Return the `__x__` attributes, which variables created by an operator take from it."""
    return {k: v for k, v in canonical(attrs).items() if k.startswith("__") and k.endswith("__")}
