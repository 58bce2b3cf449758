"""Select names by patterns; if nothing matches, the error lists the nearest names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from layerscope.errors import ArgumentError, SelectError

Pattern = str | re.Pattern[str] | type
#: A name, a glob, a compiled regular expression, for sites also a module class; or a list of them, nested or not.
Patterns = Pattern | Iterable[Any] | None
ROOT = "(model)"  # site of the watched model: its path is empty, and a child may be called "model"


def listed(patterns: Patterns, what: str = "site") -> tuple[Pattern, ...]:
    """One pattern or several as a tuple; nested lists are flattened."""
    if patterns is None:
        return ("*",)
    if isinstance(patterns, str | type) or (isinstance(patterns, re.Pattern) and isinstance(patterns.pattern, str)):
        return (patterns,)
    if not isinstance(patterns, Iterable) or isinstance(patterns, bytes | bytearray):
        raise ArgumentError(
            f"A {what} is selected by a name, a glob, a compiled regular expression{_or_class(what)} or a list of "
            f"them, got {patterns!r}."
        )
    inner = [listed("" if pattern is None else pattern, what) for pattern in patterns]
    return tuple(pattern for several in inner for pattern in several)


def selected(patterns: Iterable[Pattern], names: Sequence[str]) -> set[str]:
    """Names that match any glob or regular expression; a pattern that equals a name matches only that name."""
    known = set(names)
    return {hit for pattern in patterns for hit in _hits(pattern, names, known)}


def matching(
    patterns: Patterns, names: Sequence[str], what: str, classes: Mapping[str, str] | None = None
) -> list[str]:
    """Names that match any of the patterns, in the order of `names`; every pattern must match something.

    `classes` maps module paths to class names.

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
    """The only name that matches, or None without a pattern; an error if several match."""
    if patterns is None:
        return None
    matches = matching(patterns, names, what, classes)
    if len(matches) == 1:
        return matches[0]
    some = f"{', '.join(map(repr, matches[:5]))}{' …' if len(matches) > 5 else ''}" if matches else "none"
    raise SelectError(f"Expected one {what}, but {patterns!r} matches {len(matches)}: {some}. Pass one of them.")


def unmatched(pattern: str | re.Pattern[str], names: Sequence[str], what: str) -> str:
    """Error message for a pattern that matches none of the names."""
    word = pattern if isinstance(pattern, str) else pattern.pattern
    if not names:
        return f"No {what} matches {word!r}: nothing is recorded yet."
    noun = what if len(names) == 1 else {"axis": "axes"}.get(what, f"{what}s")
    return f"No {what} matches {word!r} among {len(names)} {noun}. {nearest(word, names)}"


def nearest(name: str, names: Iterable[str]) -> str:
    """The sentence that ends an error about a wrong name: the names most like it, or the first ones if none is.

    >>> nearest("layer.0", ["layers.0", "layers.1", "head"])
    "Near it: 'layers.0', 'layers.1'."
    """
    known = list(names)
    near = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", name), known, n=3, cutoff=0.4) or known[:3]
    return f"Near it: {', '.join(map(repr, near))}." if near else "There are none."


def _hits(pattern: Pattern, names: Sequence[str], known: set[str]) -> list[str]:
    if isinstance(pattern, re.Pattern):
        return [name for name in names if pattern.search(name)]
    assert isinstance(pattern, str)
    return [pattern] if pattern in known else [name for name in names if fnmatchcase(name, pattern)]


def _of_class(wanted: type, names: Sequence[str], what: str, classes: Mapping[str, str] | None) -> set[str]:
    """Sites of the modules of a class or its subclasses, by class name, with their parameters and buffers."""
    if what != "site":
        raise SelectError(
            f"A {what} is not a module, so the class {wanted.__name__} cannot select it. Pass a name or a glob."
        )
    if not classes:
        raise SelectError(
            f"The run has no module classes, so {wanted.__name__} selects no site: no model was watched. Pass a name."
        )
    called = _names_of(wanted)
    paths = {path for path, name in classes.items() if name in called}
    if not paths:
        raise SelectError(f"No module is a {wanted.__name__}. There are: {', '.join(sorted(set(classes.values())))}.")
    return {name for name in names if _module_of(name, classes) in paths}


def _module_of(site: str, modules: Mapping[str, str]) -> str:
    """Path of the module that a site (a call, parameter, buffer or named tensor) belongs to."""
    path, _, call = site.rpartition("#")
    path = path if path and call.isdigit() and site not in modules else site
    return path if path in modules else path.rpartition(".")[0] or ROOT


def _names_of(wanted: type) -> set[str]:
    """Names of a class and of its loaded subclasses."""
    classes, waiting = set[type](), [wanted]
    while waiting:
        one = waiting.pop()
        if one not in classes:
            classes.add(one)
            waiting += type.__subclasses__(one)
    return {one.__name__ for one in classes}


def _or_class(what: str) -> str:
    return ", a module class" if what == "site" else ""
