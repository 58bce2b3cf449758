"""Patterns → names, with an error that helps when nothing matches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from layerscope.errors import SelectError

Patterns = str | Iterable[str] | None


def listed(patterns: Patterns) -> tuple[str, ...]:
    """The patterns as a tuple, whether one or several were given."""
    if patterns is None:
        return ("*",)
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def matching(patterns: Patterns, names: Sequence[str], what: str) -> list[str]:
    """Names that match any of the glob patterns, in their own order; every pattern must match something.

    >>> matching("layers.*.mlp", ["layers.0.mlp", "layers.0.attn", "head"], "site")
    ['layers.0.mlp']
    """
    chosen: set[str] = set()
    for pattern in listed(patterns):
        hits = [name for name in names if name == pattern] or [n for n in names if fnmatchcase(n, pattern)]
        if not hits and pattern != "*":
            raise SelectError(unmatched(pattern, names, what))
        chosen.update(hits)
    return [name for name in names if name in chosen]


def unmatched(pattern: str, names: Sequence[str], what: str) -> str:
    """What to tell somebody whose pattern matches none of the names."""
    if not names:
        return f"No {what} matches {pattern!r}: nothing is recorded yet."
    near = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", pattern), names, n=3, cutoff=0.3) or names[:3]
    noun = what if len(names) == 1 else f"{what}s"
    return f"No {what} matches {pattern!r}. There are {len(names)} {noun}, for example: {', '.join(map(repr, near))}."
