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


def selected(patterns: Iterable[str], names: Sequence[str]) -> set[str]:
    """Names that match any of the glob patterns; of a pattern that is itself a name, that name alone."""
    known = set(names)
    return {hit for p in patterns for hit in ([p] if p in known else [n for n in names if fnmatchcase(n, p)])}


def matching(patterns: Patterns, names: Sequence[str], what: str) -> list[str]:
    """Names that match any of the glob patterns, in their own order; every pattern must match something.

    >>> matching("layers.*.mlp", ["layers.0.mlp", "layers.0.attn", "head"], "site")
    ['layers.0.mlp']
    """
    for pattern in listed(patterns):
        if pattern != "*" and not selected([pattern], names):
            raise SelectError(unmatched(pattern, names, what))
    chosen = selected(listed(patterns), names)
    return [name for name in names if name in chosen]


def unmatched(pattern: str, names: Sequence[str], what: str) -> str:
    """What to tell somebody whose pattern matches none of the names."""
    if not names:
        return f"No {what} matches {pattern!r}: nothing is recorded yet."
    near = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", pattern), names, n=3, cutoff=0.3) or names[:3]
    noun = what if len(names) == 1 else {"axis": "axes"}.get(what, f"{what}s")
    return f"No {what} matches {pattern!r}. There are {len(names)} {noun}, for example: {', '.join(map(repr, near))}."
