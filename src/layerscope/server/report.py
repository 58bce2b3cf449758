"""A run as one HTML file: the page with the answers to what will be looked at, up to a size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerscope.diagnose.check import check
from layerscope.errors import LayerscopeError, SelectError
from layerscope.query.discover import find_runs
from layerscope.records import KINDS_WITH
from layerscope.server import wire
from layerscope.server.answers import Answers
from layerscope.server.app import STATIC
from layerscope.viz.html import OneFile, key_of, one_file
from layerscope.viz.pass_overview import FIELDS

MOST_BYTES = 12_000_000  # of what a file holds beside the page
SCREEN = {"width": 400, "height": 72}
PICTURE = {"width": 192, "height": 144, "coarse": 1}
STATS = ("rms", "mean", "std", "min", "max", "abs_max", "zero_share", "nan")
AXES = ("linear", "symlog", "log")
KINDS = ("output", "weight_grad", "weight", "output_grad", "input_grad")  # these first
ROLLED: tuple[dict[str, int], ...] = ({}, {"unrolled": 1})
FOR_HEAT_MAPS = 0.5  # share of the size, at most: what it holds of sites without a history is not offered
FOR_SERIES = 0.6  # share of what is left for the histories; the rest is for traces


@dataclass(frozen=True, slots=True)
class Report:
    """The file, and what it holds in words."""

    html: str
    holds: str


@dataclass
class _Content:
    """Answers gathered so far, and the room they take."""

    source: Answers
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

    def plain(self, place: str) -> Any:  # Any: JSON's own shapes
        """An answer as the page sees it."""
        return wire.decode(self.source.ask(place, {}))


def report(folder: Path, *, start: str = "", most_bytes: int = MOST_BYTES, hosted: bool = False) -> Report:
    """The page on one run, as one file; `start` is the fragment of the address that it begins with."""
    runs = find_runs(folder).runs
    if runs != [folder]:
        raise SelectError(
            f"{folder} is no run. A report is of one: give a folder of a run below it, such as {runs[0]}."
            if runs
            else f"There is no run at {folder}. Give the folder of a run."
        )
    source = Answers(folder)
    try:
        return _gathered(_Content(source), folder, start, most_bytes, hosted=hosted)
    finally:
        source.close()


def _gathered(content: _Content, folder: Path, start: str, most_bytes: int, *, hosted: bool) -> Report:
    address = f"api/run/{content.source.catalogue.title}"
    for place in ("findings", "timeline", "graph", "traces"):
        content.add(f"{address}/{place}", SCREEN if place == "timeline" else {}, most_bytes)
    content.answers[key_of("api/runs", {})] = content.source.ask("api/runs", {})  # without it there is no page
    everything = content.plain(f"{address}/sites")
    run = content.source.catalogue.open(content.source.catalogue.title).run
    stats = [name for name in everything["stats"] if name in (*STATS, *run.own_statistics)]
    for_heat_maps = round(FOR_HEAT_MAPS * most_bytes)
    for kind, mode, context in _settings(everything["series"]):
        for stat in _of_kind(stats, kind):
            query = {"kind": kind, "stat": stat, "mode": mode, "context": context}
            content.add(f"{address}/graph-numbers", {**query, "tensors": 1}, for_heat_maps)
            content.add(f"{address}/heatmap", {**query, "rank": 0, **SCREEN}, for_heat_maps)
    traces = content.plain(f"{address}/traces")["traces"]
    room = most_bytes if not traces else content.used + round(FOR_SERIES * (most_bytes - content.used))
    kept = [
        series
        for series in _in_order(folder, everything["series"])
        if _add_series(content, address, series, stats, room)
    ]
    shown = {(series["series"], series["rank"]) for series in kept}
    listed = [series for series in everything["series"] if (series["series"], series["rank"]) in shown]
    # Who is hosted can ask for the rest, and must know of it.
    left_out = len(everything["series"]) - len(listed)
    sites = everything if hosted else {**everything, "series": listed, "stats": stats, "left_out": left_out}
    content.answers[key_of(f"{address}/sites", {})] = wire.encode(sites)
    told = [f"{len(kept)} of {len(everything['series'])} histories"] if everything["series"] else []
    told += [_add_trace(content, address, trace, most_bytes) for trace in reversed(traces)]
    holds = "; ".join(told) or "a run without histories and traces"
    return Report(one_file(STATIC, OneFile(content.answers, start, holds, hosted)), holds)


def _settings(series: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Kinds, modes and contexts that occur together, those of one kind side by side."""
    found = dict.fromkeys((one["kind"], one["mode"], one["context"]) for one in series)
    kinds = list(dict.fromkeys(kind for kind, _, _ in found))
    return sorted(found, key=lambda setting: kinds.index(setting[0]))


def _in_order(folder: Path, series: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Histories, those first that something was found wrong with, then the kinds that are looked at most."""
    try:
        suspects = {found.site for found in check(folder).findings}
    except LayerscopeError:  # what cannot be checked can still be shown
        suspects = set()
    rank = {kind: at for at, kind in enumerate(KINDS)}
    return iter(sorted(series, key=lambda one: (one["site"] not in suspects, rank.get(one["kind"], len(rank)))))


def _add_series(content: _Content, address: str, series: dict[str, Any], stats: list[str], room: int) -> bool:
    which = {"series": series["series"], "rank": series["rank"], **SCREEN}
    if not content.add(f"{address}/histogram", {**which, "axis": AXES[0]}, room):
        return False
    for axis in AXES[1:]:
        content.add(f"{address}/histogram", {**which, "axis": axis}, room)
    return all(
        content.add(f"{address}/scalar", {**which, "stat": stat}, room) for stat in _of_kind(stats, series["kind"])
    )


def _of_kind(stats: list[str], kind: str) -> list[str]:
    """The statistics that tensors of a kind have."""
    return [stat for stat in stats if kind in KINDS_WITH.get(stat, (kind,))]


def _add_trace(content: _Content, address: str, trace: dict[str, Any], room: int) -> str:
    """Take in one trace; what of it is in the file, in words."""
    name, count = {"trace": trace["name"]}, trace["operations"]
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
        for what in ("value", "gradient")
        if trace[f"{what}s"]
    ]
    kept = trace["values"] + trace["gradients"]
    return f"trace {int(trace['name'])} with {len(described)} of {count} operations and {sum(values)} of {kept} tensors"
