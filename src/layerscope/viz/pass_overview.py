"""A trace at a glance: how much of everything there is, and which operations have the most of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.operations import Operation, PassRecord, Role, field_of_all
from layerscope.query.callparts import MODEL
from layerscope.query.layers import Naming
from layerscope.records import Floats
from layerscope.viz.pass_page import Fact, OperationLink, link
from layerscope.viz.pass_text import size

MOST_RANKED = 10
FIELDS = ("elapsed_s", "flops", "size_bytes")


@dataclass(frozen=True, slots=True)
class PassRanking:
    """The operations with the most of a field, such as their time."""

    field: str
    total: float  # of all operations
    operations: tuple[OperationLink, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class PassOverview:
    """What a trace is made of."""

    facts: tuple[Fact, ...]
    rankings: tuple[PassRanking, ...]


def overview(record: PassRecord, naming: Naming) -> PassOverview:
    """A trace at a glance; of a field that nothing is known of there is no ranking."""
    rankings = [_ranking(record, naming, field) for field in FIELDS]
    flops = next(ranking.total for ranking in rankings if ranking.field == "flops")
    computed = next(ranking.total for ranking in rankings if ranking.field == "size_bytes")
    elements = sum(math.prod(parameter.shape) for parameter in record.parameters)
    calls = sum(bool(call.class_name) for call in record.calls)  # the first is what was traced, a module or not
    held = size(sum(parameter.size_bytes for parameter in record.parameters))
    found = (
        ("Operations", f"{len(record.operations):,} in {calls:,} calls of modules"),
        ("Parameters", f"{elements:,} elements ({held})" if elements else ""),
        ("FLOPs", f"{flops:,.0f}" if flops else ""),
        ("Time", f"{record.elapsed_s * 1e3:,.3g} ms, tracing included"),
        ("Results", f"{size(computed)} in all, if none were freed"),
        ("Seed", "" if record.seed is None else str(record.seed)),
    )
    return PassOverview(
        facts=tuple(Fact(name, text) for name, text in found if text),
        rankings=tuple(ranking for ranking in rankings if ranking.operations),
    )


def _ranking(record: PassRecord, naming: Naming, field: str) -> PassRanking:
    values = amounts(record.operations, field)
    most = np.argsort(-np.nan_to_num(values), kind="stable")[:MOST_RANKED]
    most = most[np.nan_to_num(values[most]) > 0]
    links = tuple(link(record, naming, at) for at in most.tolist())
    return PassRanking(field, float(np.nansum(values)), links, values[most])


def amounts(operations: Sequence[Operation], field: str) -> Floats:
    """A field of every operation; NaN of those that do not count, so that a sum is right."""
    values = np.array(field_of_all(operations, field), np.float64)  # None becomes NaN
    if field in ("elapsed_s", "flops"):  # of what was computed; a call with several results counts once
        leads = np.array(field_of_all(operations, "lead")) == np.arange(len(values))
        computed = np.array([role is Role.OPERATION for role in field_of_all(operations, "role")], np.bool_)
        values[~(leads & computed)] = np.nan
    return values


def flops_of_calls(record: PassRecord) -> dict[str, int]:
    """The FLOPs inside every call of a pass, by the site that it is when the model is watched."""
    of_calls = [0] * len(record.calls)
    counted = np.nan_to_num(amounts(record.operations, "flops")).astype(np.int64).tolist()
    for flops, inside in zip(counted, field_of_all(record.operations, "call"), strict=True):
        call: int | None = inside if flops else None
        while call is not None:
            of_calls[call] += flops
            call = record.calls[call].parent
    calls = zip(record.calls, of_calls, strict=True)
    return {f"{call.path or MODEL}{f'#{call.number}' if call.number > 1 else ''}": flops for call, flops in calls}
