"""Patterns → names, with an error that helps when nothing matches."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from layerscope.errors import SelectError

Pattern = str | re.Pattern[str] | type
#: A name, a glob, a compiled regular expression, for sites also a module class; or a list of them, however nested.
Patterns = Pattern | Iterable[Any] | None
ROOT = "(model)"  # the watched model's own site: its path is empty, and a child may be called "model"


def listed(patterns: Patterns, what: str = "site") -> tuple[Pattern, ...]:
    """The patterns as a tuple, whether one or several were given; lists may hold lists."""
    if patterns is None:
        return ("*",)
    if isinstance(patterns, str | type) or (isinstance(patterns, re.Pattern) and isinstance(patterns.pattern, str)):
        return (patterns,)
    if not isinstance(patterns, Iterable) or isinstance(patterns, bytes | bytearray):
        raise SelectError(
            f"A {what} is chosen by a name, a glob, a compiled regular expression{_or_class(what)} or a list of them, "
            f"not by {patterns!r}."
        )
    inner = [listed("" if pattern is None else pattern, what) for pattern in patterns]
    return tuple(pattern for several in inner for pattern in several)


def selected(patterns: Iterable[Pattern], names: Sequence[str]) -> set[str]:
    """Names that match any glob or regular expression; of a pattern that is itself a name, that name alone."""
    known = set(names)
    return {hit for pattern in patterns for hit in _hits(pattern, names, known)}


def matching(
    patterns: Patterns, names: Sequence[str], what: str, classes: Mapping[str, str] | None = None
) -> list[str]:
    """Names that match any of the patterns, in their own order; every pattern must match something.

    `classes` are the names of the modules' classes by their paths, where there are modules.

    >>> matching("layers.*.mlp", ["layers.0.mlp", "layers.0.attn", "head"], "site")
    ['layers.0.mlp']
    """
    chosen: set[str] = set()
    known = set(names)
    for pattern in listed(patterns, what):
        if isinstance(pattern, type):
            hits = _of_class(pattern, names, what, classes)
        else:
            hits = set(_hits(pattern, names, known))
            if pattern != "*" and not hits:
                raise SelectError(unmatched(pattern, names, what))
        chosen |= hits
    return [name for name in names if name in chosen]


def only(patterns: Patterns, names: Sequence[str], what: str, classes: Mapping[str, str] | None = None) -> str | None:
    """The one name that matches, None if nothing is asked for; an error if several do."""
    if patterns is None:
        return None
    found = matching(patterns, names, what, classes)
    if len(found) == 1:
        return found[0]
    some = f"{', '.join(map(repr, found[:5]))}{' …' if len(found) > 5 else ''}" if found else "none"
    raise SelectError(f"One {what} can be shown, and {patterns!r} matches {len(found)}: {some}. Give one of them.")


def unmatched(pattern: str | re.Pattern[str], names: Sequence[str], what: str) -> str:
    """What to tell somebody whose pattern matches none of the names."""
    word = pattern if isinstance(pattern, str) else pattern.pattern
    if not names:
        return f"No {what} matches {word!r}: nothing is recorded yet."
    near = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", word), names, n=3, cutoff=0.3) or names[:3]
    noun = what if len(names) == 1 else {"axis": "axes"}.get(what, f"{what}s")
    return f"No {what} matches {word!r}. There are {len(names)} {noun}, for example: {', '.join(map(repr, near))}."


def _hits(pattern: Pattern, names: Sequence[str], known: set[str]) -> list[str]:
    if isinstance(pattern, re.Pattern):
        return [name for name in names if pattern.search(name)]
    assert isinstance(pattern, str)
    return [pattern] if pattern in known else [name for name in names if fnmatchcase(name, pattern)]


def _of_class(wanted: type, names: Sequence[str], what: str, classes: Mapping[str, str] | None) -> set[str]:
    """The sites of modules of a class, known by its name, or of a subclass of it; their parameters and buffers too."""
    if what != "site":
        raise SelectError(f"A {what} is no module, so the class {wanted.__name__} chooses none. Give a name or a glob.")
    if not classes:
        raise SelectError(
            f"The run knows no module classes, so {wanted.__name__} chooses no site: no model was watched. Give a name."
        )
    called = _names_of(wanted)
    paths = {path for path, name in classes.items() if name in called}
    if not paths:
        raise SelectError(f"No module is a {wanted.__name__}. There are: {', '.join(sorted(set(classes.values())))}.")
    return {name for name in names if _module_of(name, classes) in paths}


def _module_of(site: str, modules: Mapping[str, str]) -> str:
    """The path of the module that a site is a call of, or a parameter, buffer or named tensor of."""
    path, _, call = site.rpartition("#")
    path = path if path and call.isdigit() and site not in modules else site
    return path if path in modules else path.rpartition(".")[0] or ROOT


def _names_of(wanted: type) -> set[str]:
    """The name of a class, and those of its subclasses as far as they are loaded."""
    found, waiting = set[type](), [wanted]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += type.__subclasses__(one)
    return {one.__name__ for one in found}


def _or_class(what: str) -> str:
    return ", a module class" if what == "site" else ""
