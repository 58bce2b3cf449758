"""The page as one file: its code, its styles and the answers to what it will ask for, in one HTML text.

The answers stand in a script element that no browser runs, as base64 of a gzip stream: nothing from a run can end the
element. The stream is the length of a head (uint32, little endian), the head in JSON, `{"paths": […], "sizes": […]}`,
and the messages one after the other. A path is what is asked for without what only the screen decides: its place and
its sorted `name=value`s, one on each line.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match

from layerscope.diagnose.rules import check
from layerscope.errors import LayerscopeError, MissingError, SelectError
from layerscope.model.records import KINDS_WITH
from layerscope.query.discover import find_runs
from layerscope.query.run_tables import custom_statistics
from layerscope.server import wire
from layerscope.server.app import STATIC
from layerscope.server.catalogue import Catalogue
from layerscope.server.routes import routes
from layerscope.views.run_overview import SeriesEntry, site_list
from layerscope.views.trace_page import TraceEntry, trace_list
from layerscope.views.wording import FIELDS

SCREEN = frozenset({"width", "height", "first", "last", "smooth", "coarse"})  # as in web/src/offline.ts
_SCRIPT = re.compile(r'<script type="module"[^>]* src="\./([^"]+)"></script>')
_STYLE = re.compile(r'<link rel="stylesheet"[^>]* href="\./([^"]+)">')
_ICON = re.compile(r'<link rel="icon"[^>]*>')


@dataclass(frozen=True, slots=True)
class OneFile:
    """What a file holds beside the page itself."""

    answers: Mapping[str, bytes]  # by `key_of` what is asked for
    start: str  # fragment of the address to begin with
    holds: str  # in words
    hosted: bool = False  # the program that shows the page answers what is not in it


def key_of(place: str, query: Mapping[str, object]) -> str:
    """What is asked for, as the page looks it up.

    >>> key_of("api/run/a/b/scalar", {"width": 640, "stat": "rms", "series": 3}).splitlines()
    ['api/run/a/b/scalar', 'series=3', 'stat=rms']
    """
    return "\n".join([place, *sorted(f"{name}={value}" for name, value in query.items() if name not in SCREEN)])


def one_file(page: Path, content: OneFile) -> str:
    """The page in the folder `page` as one HTML text that needs nothing else: no server, no network."""
    if not (page / "index.html").is_file():
        raise MissingError(
            "The page has not been built. Install layerscope with `pip install .`, or build it in `web`."
        )
    index = (page / "index.html").read_text(encoding="utf-8")
    (script,), (style,) = (_read(page, pattern.findall(index)) for pattern in (_SCRIPT, _STYLE))
    script = _inside_html(script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    said = {"start": content.start, "holds": content.holds, **({"hosted": ""} if content.hosted else {})}
    data = "".join(f' data-{name}="{escape(text)}"' for name, text in said.items())
    answers = (
        f'<script type="application/octet-stream" id="layerscope-answers"{data}>{packed(content.answers)}</script>'
    )
    index = _ICON.sub(lambda _: f'<meta http-equiv="Content-Security-Policy" content="{policy}" />', index, count=1)
    index = _STYLE.sub(lambda _: f"<style>{style}</style>", index)
    index = _SCRIPT.sub("", index)
    code = f'{answers}\n<script type="module">{script}</script>'
    return index.replace("</body>", f"{code}\n</body>")


def _read(page: Path, names: list[str]) -> list[str]:
    return ["\n".join((page / name).read_text(encoding="utf-8") for name in names)]


def _inside_html(script: str) -> str:
    """Code that cannot end its element: in strings and regular expressions a backslash changes nothing."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def packed(answers: Mapping[str, bytes]) -> str:
    """Messages as text that can stand anywhere in HTML."""
    sizes = [len(message) for message in answers.values()]
    head = json.dumps({"paths": list(answers), "sizes": sizes}).encode()
    whole = b"".join([len(head).to_bytes(4, "little"), head, *answers.values()])
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode()


class OfflineApi:
    """The messages for what a page asks of the runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.catalogue = Catalogue(root)
        self._routes = routes(self.catalogue)

    def ask(self, place: str, query: Mapping[str, object]) -> bytes:
        """The message for a place, such as "api/run/first/sites"; the error says why there is none."""
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/{place}",
            "root_path": "",
            "headers": [],
            "query_string": urlencode(query).encode(),
        }
        for route in self._routes:
            match, matched = route.matches(scope)
            if match is Match.FULL:
                try:
                    return bytes(route.endpoint(Request({**scope, **matched})).body)
                except HTTPException as error:
                    raise SelectError(error.detail) from None
        raise SelectError(f"There is nothing at {place[:200]!r}.")

    def ask_path(self, path: str) -> bytes:
        """The message for what the page asks for in its own words: a path with its query, escaped."""
        place, _, query = path.partition("?")
        return self.ask(unquote(place), dict(parse_qsl(query, keep_blank_values=True)))

    def close(self) -> None:
        """Start nothing further in the background."""
        self.catalogue.close()


MOST_BYTES = 12_000_000  # of what a file holds beside the page
REPORT_SCREEN = {"width": 400, "height": 72}
PICTURE = {"width": 192, "height": 144, "coarse": 1}
STATS = ("rms", "mean", "std", "min", "max", "abs_max", "zero_share", "nan")
AXES = ("linear", "symlog", "exponent")
KINDS = ("output", "weight_grad", "weight", "output_grad", "input_grad")  # these first
ROLLED: tuple[dict[str, int], ...] = ({}, {"unrolled": 1})
FOR_HEAT_MAPS = 0.5  # share of the size, at most: what it holds of sites without a history is not offered
FOR_SERIES = 0.6  # share of what is left for the histories; the rest is for traces


@dataclass(frozen=True, slots=True)
class SavedReport:
    """The file, and what it holds in words."""

    html: str
    holds: str


@dataclass
class _Content:
    """Answers gathered so far, and the room they take."""

    source: OfflineApi
    answers: dict[str, bytes] = field(default_factory=dict)
    used: int = 0

    def add(self, place: str, query: Mapping[str, object], room: int) -> bool:
        """Take in one answer, if there is one and it fits."""
        try:
            message = self.source.ask(place, query)
        except SelectError:  # a view that this run does not have
            return False
        size = len(zlib.compress(message, 1)) * 4 // 3  # in base64
        if self.used + size > room:
            return False
        self.used += size
        self.answers[key_of(place, query)] = message
        return True


def report(folder: Path, *, start: str = "", most_bytes: int = MOST_BYTES, hosted: bool = False) -> SavedReport:
    """The page on one run, as one file; `start` is the fragment of the address that it begins with."""
    runs = find_runs(folder).runs
    if runs != [folder]:
        raise SelectError(
            f"{folder} is no run. A report is of one: give a folder of a run below it, such as {runs[0]}."
            if runs
            else f"There is no run at {folder}. Give the folder of a run."
        )
    source = OfflineApi(folder)
    try:
        return _gathered(_Content(source), folder, start, most_bytes, hosted=hosted)
    finally:
        source.close()


def _gathered(content: _Content, folder: Path, start: str, most_bytes: int, *, hosted: bool) -> SavedReport:
    catalogue = content.source.catalogue
    address, run = f"api/run/{catalogue.title}", catalogue.open(catalogue.title)
    for place in ("findings", "timeline", "graph", "traces"):
        content.add(f"{address}/{place}", REPORT_SCREEN if place == "timeline" else {}, most_bytes)
    content.answers[key_of("api/runs", {})] = content.source.ask("api/runs", {})  # without it there is no page
    sites, traces = site_list(run), trace_list(run).traces
    stats = [name for name in sites.stats if name in (*STATS, *custom_statistics(run.reader))]
    for_heat_maps = round(FOR_HEAT_MAPS * most_bytes)
    for kind, mode, context in _settings(sites.series):
        for stat in _of_kind(stats, kind):
            query = {"kind": kind, "stat": stat, "mode": mode, "context": context}
            content.add(f"{address}/graph-numbers", {**query, "tensors": 1}, for_heat_maps)
            content.add(f"{address}/heatmap", {**query, "rank": 0, **REPORT_SCREEN}, for_heat_maps)
    room = most_bytes if not traces else content.used + round(FOR_SERIES * (most_bytes - content.used))
    ordered = _in_order(folder, sites.series)
    kept = {(one.series, one.rank) for one in ordered if _add_series(content, address, one, stats, room)}
    listed = tuple(one for one in sites.series if (one.series, one.rank) in kept)
    left_out = len(sites.series) - len(listed)
    # A host answers requests for the rest, so that the page must know of it.
    saved = sites if hosted else replace(sites, series=listed, stats=tuple(stats), left_out=left_out)
    content.answers[key_of(f"{address}/sites", {})] = wire.encode(saved)
    contents = [f"{len(kept)} of {len(sites.series)} histories"] if sites.series else []
    contents += [_add_trace(content, address, trace, most_bytes) for trace in reversed(traces)]
    holds = "; ".join(contents) or "a run without histories and traces"
    return SavedReport(one_file(STATIC, OneFile(content.answers, start, holds, hosted)), holds)


def _settings(series: Sequence[SeriesEntry]) -> list[tuple[str, str, str]]:
    """Kinds, modes and contexts that occur together, those of one kind side by side."""
    settings = dict.fromkeys((one.kind, one.mode, one.context) for one in series)
    kinds = list(dict.fromkeys(kind for kind, _, _ in settings))
    return sorted(settings, key=lambda setting: kinds.index(setting[0]))


def _in_order(folder: Path, series: Sequence[SeriesEntry]) -> list[SeriesEntry]:
    """Histories, those with findings first, then the kinds that are looked at most."""
    try:
        suspects = {finding.site for finding in check(folder).findings}
    except LayerscopeError:  # what cannot be checked can still be shown
        suspects = set()
    rank = {kind: at for at, kind in enumerate(KINDS)}
    return sorted(series, key=lambda one: (one.site not in suspects, rank.get(one.kind, len(rank))))


def _add_series(content: _Content, address: str, series: SeriesEntry, stats: list[str], room: int) -> bool:
    which = {"series": series.series, "rank": series.rank, **REPORT_SCREEN}
    if not content.add(f"{address}/histogram", {**which, "axis": AXES[0]}, room):
        return False
    for axis in AXES[1:]:
        content.add(f"{address}/histogram", {**which, "axis": axis}, room)
    return all(content.add(f"{address}/scalar", {**which, "stat": stat}, room) for stat in _of_kind(stats, series.kind))


def _of_kind(stats: list[str], kind: str) -> list[str]:
    """The statistics that tensors of a kind have."""
    return [stat for stat in stats if kind in KINDS_WITH.get(stat, (kind,))]


def _add_trace(content: _Content, address: str, trace: TraceEntry, room: int) -> str:
    """Take in one trace; what of it is in the file, in words."""
    name, count = {"trace": trace.name}, trace.operations
    for more in ROLLED:
        content.add(f"{address}/trace", {**name, **more}, room)
        for fields in FIELDS:
            content.add(f"{address}/trace-numbers", {**name, **more, "field": fields}, room)
    content.add(f"{address}/trace-overview", name, room)
    content.add(f"{address}/operations", {**name, "search": ""}, room)
    described = [
        op
        for op in range(count)
        if all(content.add(f"{address}/operation", {**name, **more, "op": op}, room) for more in ROLLED)
    ]
    values = [
        content.add(f"{address}/value", {**name, "op": op, "what": what, **PICTURE}, room)
        for op in described
        for what, count_of in (("value", trace.values), ("gradient", trace.gradients))
        if count_of
    ]
    kept = trace.values + trace.gradients
    return f"trace {int(trace.name)} with {len(described)} of {count} operations and {sum(values)} of {kept} tensors"
