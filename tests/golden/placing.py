"""Placed groups that the page's placer must place alike: `python -m tests.golden.placing` writes them anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from layerscope.graph.collapse import Opening, collapse
from layerscope.graph.edge_routes import GroupFrame, Placement
from layerscope.graph.layout_x import SpanX
from layerscope.graph.order import OrderedGroup
from layerscope.graph.place import place
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw.picture import orderings
from layerscope.views.nested_graph import NOTHING, group_order
from tests.views import graphs

FILE = Path(__file__).parent / "placing.json"
DIGITS = 6

Plain = dict[str, Any]  # Any: JSON's own shapes


def cases() -> Iterator[Plain]:
    """Groups of graphs with skips, branches, loops and nesting, each with its placement."""
    yield from _groups("residual", graphs.residual(3), 3)
    yield from _groups("flat residual", graphs.flat_residual(6), 3)
    yield from _groups("unet", graphs.unet(3), 3)
    yield from _groups("loop", graphs.loop(5), 3)
    yield from _groups("lstm", graphs.lstm(3), 3)
    yield from _groups("dense", graphs.skips_across(9), 2)
    yield from _groups("transformer", graphs.transformer(2), 3)
    yield from _groups("long titles", graphs.transformer(2), 3, longer=300.0)
    yield from _groups("a long title over two inputs", graphs.two_inputs(), 3, longer=300.0)


def _groups(name: str, record: TraceRecord, depth: int, longer: float = 0.0) -> Iterator[Plain]:
    drawable = collapse(record, graphs.named(record), Opening(depth=depth))
    extents = {block.index: SpanX(60.0 + 37 * block.index % 90, 38.0) for block in drawable.visible()}
    for group, ordering in orderings(drawable).items():
        children = {spot.child for spot in ordering.spots if spot.child is not None}
        title = 0.0 if group == drawable.root else 70.0 + 31 * group % 80 + longer
        placed = place(ordering, extents, GroupFrame(14.0, 22.0 if title else 0.0, title, folds=False))
        yield {
            "name": f"{name}, group {group}",
            "order": asdict(group_order(group, OrderedGroup(ordering, {}, {}), {}, {})),
            "frame": {"padding": 14.0, "titleHeight": 22.0 if title else 0.0, "titleWidth": title},
            "extents": [[child, *_extent(extents[child])] for child in sorted(children)],
            "placed": _placed(placed),
        }
        extents[group] = placed.extent()


def _extent(extent: SpanX) -> list[object]:
    return [extent.width, extent.height, sorted(extent.entries.items()), sorted(extent.exits.items())]


def _placed(placed: Placement) -> Plain:
    flows = placed.ordering.flows
    ways = [(at, target) for at, flow in enumerate(flows) for target in flow.targets]
    ways += [(at, NOTHING) for at, flow in enumerate(flows) if flow.leaves]
    return {
        "width": placed.width,
        "height": placed.height,
        "x": placed.x,
        "bands": placed.bands,
        "title": placed.title,
        "corners": [[child, *placed.corner(child)] for child in sorted(placed.spot_of)],
        "routes": [[at, to, placed.route(at, None if to == NOTHING else to)] for at, to in ways],
        "backs": [placed.way_back(lane) for lane in placed.ordering.lanes],
    }


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def text() -> str:
    """The content of the file: one case per line."""
    lines = (json.dumps(_rounded(case), separators=(",", ":")) for case in cases())
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
