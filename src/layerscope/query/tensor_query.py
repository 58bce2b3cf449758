"""TensorQuery: which named tensor a user asks for, resolved to what a run has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from layerscope.model.records import Dependencies, Ints
from layerscope.query.tables import at_or_before

if TYPE_CHECKING:
    from layerscope.query.named_tensors import NamedTensors


ANY_TYPE = ""


@dataclass(frozen=True, slots=True)
class TensorSelection:
    """One tensor of one step: the argument of a custom view."""

    run: str
    step: int
    type: str  # of the step
    iteration: int
    node: str  # the name of the tensor
    role: str = ""  # which of the node's tensors; "" where it has but one
    sample: int | None = None  # its place in the batch; None for all of them
    loss: str | None = None  # None for the value; else the gradient of this loss, "" where it has no name


@dataclass(frozen=True, slots=True)
class TensorQuery:
    """The requested tensor; None where any will do."""

    type: str | None = None
    step: int | None = None
    iteration: int | None = None
    node: str | None = None
    role: str | None = None
    sample: int | None = None
    loss: str | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices that remain after each earlier choice."""

    types: tuple[str, ...] = ()
    type: str = ANY_TYPE  # the one that was chosen; the steps are its
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    iterations: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedQuery:
    """The selection that is nearest to a query, and a phrase for each difference from it."""

    selection: TensorSelection
    choices: Choices
    differences: tuple[str, ...]
    graph: Dependencies
    batch: int  # samples of the step, 0 if that is not known
    reason: str  # why the step was kept
    exists: bool  # whether the node is in the graph
    has_samples: bool  # whether the tensor has a batch: a parameter has none


def resolve_query(named: NamedTensors, run: str, query: TensorQuery) -> ResolvedQuery | None:
    """What a run has of a query; None where it has no named tensors."""
    differences: list[str] = []
    types = tuple(named.types())
    if not types:
        return None
    type_ = query.type if query.type in types else ANY_TYPE
    if query.type and not type_:
        differences.append(f"no step of type {query.type}")
    table = named.steps(type_ or None).arrow()
    steps: Ints = table.column("step").to_numpy()
    at = at_or_before(steps, query.step)
    step = int(steps[at])
    row = table.slice(at, 1).to_pylist()[0]
    iterations = tuple(i for i in range(row["iterations"] + 1) if named.graph(step, i) is not None)
    iteration = _iteration(query.iteration, iterations, differences)
    graph = named.graph(step, iteration)
    if graph is None:  # a step in which nothing was named has no row
        return None
    node = query.node or _first_node(graph)
    roles = next((tuple(role for role, _ in one.roles) for one in graph.nodes if one.name == node), ())
    role = query.role if query.role in roles else next(iter(roles), query.role or "")
    if roles and query.role and role != query.role:
        differences.append(f"{node} has no {query.role}")
    losses = tuple(row["losses"] or ())
    loss = query.loss if query.loss in losses else next(iter(losses), None) if query.loss is not None else None
    samples = tuple(row["samples"] or ())
    sample = query.sample if query.sample in samples else None
    if query.sample is not None and sample is None:
        differences.append(f"sample {query.sample} not kept at this step")
    if query.loss is not None and loss != query.loss:
        differences.append(f"no gradient of {query.loss or 'a loss'} at this step")
    return ResolvedQuery(
        selection=TensorSelection(run, step, row["type"], iteration, node, role, sample, loss),
        choices=Choices(types, type_, steps, iterations, roles, samples, tuple(row["categories"] or ()), losses),
        differences=tuple(differences),
        graph=graph,
        batch=row["batch"],
        reason=row["reason"],
        exists=bool(roles),
        has_samples=not roles or named.has_samples(step, node, role, iteration, loss),
    )


def _iteration(number: int | None, there: tuple[int, ...], differences: list[str]) -> int:
    if not there:
        return 1
    if number is not None and number not in there:
        differences.append(f"no iteration {number} in this step")
    return number if number in there else there[-1]


def _first_node(graph: Dependencies) -> str:
    """The node to show first: the loss, if there is one."""
    by_part = sorted(graph.nodes, key=lambda node: node.type.value != "loss")
    return by_part[0].name if by_part else ""
