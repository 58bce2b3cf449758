"""The graph of a pass, drawn into a file or given as SVG text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from layerscope.errors import MissingError, SelectError
from layerscope.graph.layers import Naming
from layerscope.graph.op_blocks import BlockRole
from layerscope.model.trace_record import TraceRecord
from layerscope.views.draw.picture import DrawOptions, EdgeStyle, EdgeView, GraphView, GroupView, NodeView, graph_view
from layerscope.views.draw.svg import LIGHT, svg
from layerscope.views.scales import is_dark

FORMATS = (".svg", ".png", ".dot")


def draw_pass(record: TraceRecord, naming: Naming, path: Path | None, options: DrawOptions) -> str:
    """The graph as SVG text; with a path also written there, in the format its ending names."""
    if path is not None and path.suffix not in FORMATS:
        raise SelectError(
            f"A graph is drawn as {', '.join(FORMATS)}, not as {path.suffix or 'a file without ending'!r}."
        )
    view = graph_view(record, naming, options)
    drawn = svg(view)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            path.write_bytes(png(view))
        elif path.suffix == ".dot":
            path.write_text(dot(view), encoding="utf-8")
        else:
            path.write_text(drawn, encoding="utf-8")
    return drawn


MOST_PIXELS = 80_000_000  # a picture of 2,000 nodes is made smaller rather than exhausting the memory
FONTS = sorted(Path(__file__).with_name("fonts").glob("*.ttf"))


def png(view: GraphView, *, scale: float = 2.0, dark: bool = False) -> bytes:
    """The picture as PNG, `scale` pixels for each unit of the SVG where that is not too many."""
    try:
        import resvg_py  # type: ignore[import-not-found, unused-ignore]  # optional, and ships no types
    except ImportError as error:
        raise MissingError(
            "A PNG is drawn by the package resvg-py, which is not installed: pip install 'layerscope[png]'. "
            "SVG and DOT need nothing."
        ) from error
    most = math.sqrt(MOST_PIXELS / max(1.0, view.width * view.height))
    drawn = resvg_py.svg_to_bytes(
        svg_string=svg(view, dark=dark), zoom=min(scale, most), font_files=[str(font) for font in FONTS]
    )
    return bytes(drawn)


SHAPES = {BlockRole.INPUT: "ellipse", BlockRole.OUTPUT: "ellipse", BlockRole.MODULE: "box, peripheries=2"}


def dot(view: GraphView) -> str:
    """The same nodes, groups and edges for Graphviz to place."""
    inside: defaultdict[int | None, list[NodeView | GroupView]] = defaultdict(list)
    drawn: list[NodeView | GroupView] = [*view.nodes, *view.groups]
    for each in drawn:
        inside[view.parents.get(each.id)].append(each)
    lines = [
        f"digraph {_quoted(view.title)} {{",
        f'  graph [label={_quoted(view.title)}, labelloc=t, rankdir=TB, fontname="Helvetica", bgcolor="{LIGHT.page}"];',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];',
        f'  edge [color="{LIGHT.line}", fontname="Helvetica", fontsize=9];',
        *_inside(inside, None, "  "),
        *(f"  {_edge(edge)}" for edge in view.edges),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _inside(
    inside: defaultdict[int | None, list[NodeView | GroupView]], group: int | None, indent: str
) -> Iterator[str]:
    for each in inside[group]:
        if isinstance(each, NodeView):
            yield indent + _node(each)
            continue
        label = f"{each.title}  {each.detail}".strip()
        yield f"{indent}subgraph cluster_{each.id} {{"
        yield f'{indent}  graph [label={_quoted(label)}, labeljust=l, style="rounded", color="{LIGHT.border}"];'
        yield from _inside(inside, each.id, indent + "  ")
        yield f"{indent}}}"


def _node(node: NodeView) -> str:
    fill, outline = LIGHT.roles[node.role.value]
    ink = "#ffffff" if node.color and is_dark(node.color) else LIGHT.ink
    label = _quoted("\n".join((node.title, *node.lines)))
    shape = SHAPES.get(node.role, "box")
    return (
        f"n{node.id} [label={label}, tooltip={_quoted(node.tooltip)}, shape={shape}, "
        f'fillcolor="{node.color or fill}", color="{outline}", fontcolor="{ink}"];'
    )


def _edge(edge: EdgeView) -> str:
    label = f"label={_quoted(edge.label)}" if edge.label else ""
    if edge.style is EdgeStyle.BACK:
        look = f'style=dashed, color="{LIGHT.back}", constraint=false'
    elif edge.style is EdgeStyle.GRADIENT:
        look = f'color="{LIGHT.gradient}", penwidth=2, constraint=false'
    else:
        look = ""
    attributes = ", ".join(part for part in (label, look) if part)
    return f"n{edge.source} -> n{edge.target}{f' [{attributes}]' if attributes else ''};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
