"""The graph of a pass as Graphviz DOT text, groups as clusters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from layerscope.query.blocks import BlockRole
from layerscope.viz.color import is_dark
from layerscope.viz.graph import EdgeStyle, EdgeView, GraphView, GroupView, NodeView
from layerscope.viz.theme import LIGHT

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
