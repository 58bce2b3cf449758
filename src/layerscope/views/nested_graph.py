"""A graph of boxes in boxes as the page takes it: what to write on each part, and the order inside each group.

Which groups are open is the page's affair, and so are the places that follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from layerscope.graph.order import NO_TENSOR, OrderedGroup
from layerscope.views.draw.text_width import text_width

NOTHING = -1  # instead of a part, a flow or a tensor
NAME_SIZE, DETAIL_SIZE, TITLE_SIZE = 12.0, 10.5, 11.0
NARROWEST, WIDEST, SHORTEST_TITLE = 84, 258, 150
MARGIN, CHEVRON, TIMES = 9, 16, 26  # beside the text; for the sign that it can be opened; for ×12


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """The order of one group: flows, places in layers (spots), the links between them, and ways back (lanes).

    Columns that begin alike are of one length. A flow below zero keeps things in order and is not drawn.
    """

    group: int
    flow_tensors: tuple[int, ...]
    flow_sources: tuple[int, ...]  # a child, or -1: through the top
    flow_leaves: tuple[int, ...]  # 1 where the flow goes out through the bottom as well
    flow_out_of: tuple[int, ...]  # the tensor inside the source that it continues
    target_flows: tuple[int, ...]
    target_children: tuple[int, ...]
    target_into: tuple[int, ...]  # the tensor inside the target that continues it
    spot_children: tuple[int, ...]
    spot_flows: tuple[int, ...]
    layer_sizes: tuple[int, ...]
    layer_spots: tuple[int, ...]  # layer after layer, from left to right
    link_uppers: tuple[int, ...]
    link_lowers: tuple[int, ...]
    link_flows: tuple[int, ...]
    lane_flows: tuple[int, ...]
    lane_targets: tuple[int, ...]
    lane_numbers: tuple[int, ...]
    input_names: tuple[str, ...]  # of the call that the group is
    input_tensors: tuple[int, ...]  # the tensor inside, or -1
    output_names: tuple[str, ...]
    output_tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupOrders:
    """Some groups of a graph."""

    groups: tuple[GroupOrder, ...]


@dataclass(frozen=True, slots=True)
class NestedGraph:
    """All parts of a graph; a part's number is its place in the columns, and part 0 is the whole."""

    title: str
    note: str  # what the picture lacks, and why
    parents: tuple[int, ...]  # -1 for the whole, and for what is not drawn
    roles: tuple[str, ...]
    names: tuple[str, ...]
    details: tuple[str, ...]  # the second line
    widths: tuple[int, ...]  # when closed
    heights: tuple[int, ...]
    title_widths: tuple[int, ...]  # when open
    times: tuple[int, ...]  # how often a repeat repeats, otherwise 1
    sites: tuple[str, ...]
    facts: tuple[str, ...]  # for the tooltip: lines of key, tab, value
    opened: tuple[int, ...]  # what to open at first
    groups: tuple[GroupOrder, ...]  # all of them in a small graph


def group_order(group: int, ordered: OrderedGroup, inputs: dict[str, int], outputs: dict[str, int]) -> GroupOrder:
    """The order of one group as columns; `inputs` and `outputs` are ports and the tensors inside."""
    ordering = ordered.ordering
    flows, lanes = ordering.flows, ordering.lanes
    targets = [(at, child) for at, flow in enumerate(flows) for child in (*flow.targets, *flow.back)]
    return GroupOrder(
        group=group,
        flow_tensors=tuple(flow.tensor for flow in flows),
        flow_sources=tuple(_or_nothing(flow.source) for flow in flows),
        flow_leaves=tuple(int(flow.leaves) for flow in flows),
        flow_out_of=tuple(
            NO_TENSOR if flow.source is None else ordered.out_of.get((flow.source, flow.tensor), NO_TENSOR)
            for flow in flows
        ),
        target_flows=tuple(at for at, _ in targets),
        target_children=tuple(child for _, child in targets),
        target_into=tuple(ordered.into.get((child, flows[at].tensor), NO_TENSOR) for at, child in targets),
        spot_children=tuple(_or_nothing(spot.child) for spot in ordering.spots),
        spot_flows=tuple(_or_nothing(spot.flow) for spot in ordering.spots),
        layer_sizes=tuple(map(len, ordering.layers)),
        layer_spots=tuple(spot for layer in ordering.layers for spot in layer),
        link_uppers=tuple(link.upper for link in ordering.links),
        link_lowers=tuple(link.lower for link in ordering.links),
        link_flows=tuple(link.flow for link in ordering.links),
        lane_flows=tuple(lane.flow for lane in lanes),
        lane_targets=tuple(lane.target for lane in lanes),
        lane_numbers=tuple(lane.number for lane in lanes),
        input_names=tuple(inputs),
        input_tensors=tuple(inputs.values()),
        output_names=tuple(outputs),
        output_tensors=tuple(outputs.values()),
    )


def _or_nothing(index: int | None) -> int:
    return NOTHING if index is None else index


def box_width(name: str, detail: str, *, opens: bool, times: int = 1) -> int:
    """How wide a closed part is drawn."""
    title = text_width(name, NAME_SIZE, bold=True) + (CHEVRON if opens else 0) + (TIMES if times > 1 else 0)
    return round(min(max(title, text_width(detail, DETAIL_SIZE), NARROWEST - 2 * MARGIN) + 2 * MARGIN, WIDEST))


def title_width(name: str) -> int:
    """The room that the title of an open part needs."""
    return min(SHORTEST_TITLE, round(text_width(name, TITLE_SIZE, bold=True)) + 40)


def facts_text(facts: Iterable[tuple[str, str]]) -> str:
    """Facts for a tooltip: lines of a name, a tab and a text."""
    return "\n".join(f"{one_line(name)}\t{one_line(text)}" for name, text in facts)


def one_line(text: str) -> str:
    """A text of one line: names can hold anything."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
