"""Dependency graphs of a small recurrent network, made by hand: before, within and at the end of its loop."""

from __future__ import annotations

from layerscope.model.records import Dependencies, DependencyLink, NamedNode, TensorType

BATCH, WIDE = 16, 5
KEPT = (0, 1, 2)


def node(name: str, part: TensorType, *roles: tuple[str, tuple[int, ...]]) -> NamedNode:
    return NamedNode(name, part, roles or (("", (BATCH, WIDE)),))


def link(source: str, target: str, back: int = 0, source_role: str = "", target_role: str = "") -> DependencyLink:
    return DependencyLink(source, source_role, back, target, target_role)


INITIAL = Dependencies(0, (node("memory", TensorType.INTERMEDIATE, ("", (BATCH, 8))),), ())
INNER = (
    node("input", TensorType.INPUT),
    node("partial_sums", TensorType.INTERMEDIATE, ("sum", (BATCH, WIDE)), ("last", (BATCH, WIDE))),
    node("pre", TensorType.PARAMETER, ("0.weight", (8, WIDE)), ("0.bias", (8,))),
    node("pre_out", TensorType.INTERMEDIATE, ("", (BATCH, 8))),
    node("memory", TensorType.INTERMEDIATE, ("", (BATCH, 8))),
)
INNER_LINKS = (
    link("input", "pre_out"),
    link("input", "partial_sums", target_role="sum"),
    link("pre", "pre_out", source_role="0.weight"),
    link("pre_out", "memory"),
    link("memory", "memory", back=1),
    link("pre", "memory", source_role="0.bias"),
)
FIRST = Dependencies(1, INNER, INNER_LINKS)
LAST = Dependencies(
    2,
    (
        *INNER,
        node("output", TensorType.INTERMEDIATE),
        node("target", TensorType.TARGET),
        node("loss", TensorType.LOSS, ("", ())),
    ),
    (*INNER_LINKS, link("memory", "output"), link("output", "loss"), link("target", "loss")),
)
