"""Every view of the page, built without a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from layerscope.diagnose.rules import check
from layerscope.query.matrix import Question
from layerscope.query.tensor_query import TensorQuery
from layerscope.server.wire import encode
from layerscope.store.reader import Reader
from layerscope.views import compare, heatmap, histogram, module_graph, run_overview, scalar, trace_page
from layerscope.views.dependencies import ProjectGraphs
from layerscope.views.findings import findings_view
from layerscope.views.open_run import OpenRun, RunOrProblem, SeriesNumber
from layerscope.views.samples import samples_view
from layerscope.views.scales import AxisKind
from layerscope.views.tensors import TensorsRequest, tensors_view
from layerscope.views.values import ValueRequest

SCREEN, AXIS, RMS = scalar.Screen(), AxisKind.LINEAR, Question("output", "rms", "train", 0)
OF_KIND = "kind=output&mode=train&stat=rms"

Views = Iterator[tuple[str, str, object]]


def built(folder: Path) -> Views:
    """Name of each view, the request that asks for it, and what its builder makes."""

    runs = {name: OpenRun(Reader(folder / name), name) for name in ("first", "second", "blocks", "net", "named")}
    yield from _of_run(runs["first"])
    yield from _graphs(runs["blocks"])
    yield from _traces(runs["net"])
    yield from _of_runs([RunOrProblem(name, runs[name]) for name in ("first", "second")])
    named = [RunOrProblem("named", runs["named"])]
    made = tensors_view(named, TensorsRequest(), ProjectGraphs(), SCREEN)
    yield "tensors", "tensors?run=named", made
    yield "tensors/samples", "tensors/samples?run=named", samples_view(named, TensorQuery(), (), "mean")


def _of_run(first: OpenRun) -> Views:
    which = SeriesNumber(0)
    yield "sites", "run/first/sites", run_overview.site_list(first)
    yield "timeline", "run/first/timeline", run_overview.timeline(first, SCREEN)
    yield "notes", "run/first/notes", run_overview.notes_view(first)
    yield "scalar", "run/first/scalar?series=0&stat=rms", scalar.series_scalar(first, which, "rms", SCREEN)
    made: object = histogram.series_histogram(first, which, AXIS, SCREEN)
    yield "histogram", "run/first/histogram?series=0&axis=linear", made
    made = compare.step_histogram(first, which, 2, AXIS, SCREEN)
    yield "step-histogram", "run/first/step-histogram?series=0&axis=linear&step=2", made
    yield "heatmap", f"run/first/heatmap?{OF_KIND}", heatmap.heat_map(first, RMS, SCREEN)
    yield "findings", "run/first/findings", findings_view("first", check(first.reader.folder))


def _graphs(blocks: OpenRun) -> Views:
    yield "network", "run/blocks/network", run_overview.network_view(blocks)
    yield "graph", "run/blocks/graph", module_graph.module_graph(blocks).view
    yield "graph-groups", "run/blocks/graph-groups?of=0", module_graph.graph_groups(blocks, [0])
    numbers = module_graph.graph_numbers(blocks, RMS, 1, 1, tensors=True)
    yield "graph-numbers", f"run/blocks/graph-numbers?{OF_KIND}&step=1&tensors=1", numbers


def _traces(net: OpenRun) -> Views:
    trace, op = trace_page.open_trace(net, "000001"), "trace=000001&op=1"
    yield "traces", "run/net/traces", trace_page.trace_list(net)
    yield "trace", "run/net/trace?trace=000001", trace_page.trace_picture(trace)
    yield "trace-groups", "run/net/trace-groups?trace=000001&of=0", trace_page.trace_groups(trace, [0])
    made = trace_page.trace_numbers(trace, "flops")
    yield "trace-numbers", "run/net/trace-numbers?trace=000001&field=flops", made
    yield "trace-overview", "run/net/trace-overview?trace=000001", trace.overview
    yield "operation", f"run/net/operation?{op}", trace_page.operation_view(trace, 1)
    yield "operations", "run/net/operations?trace=000001&search=conv", trace_page.operation_list(trace, "conv")
    value = trace_page.operation_value(trace, 1, "value", ValueRequest())
    yield "value", f"run/net/value?{op}&what=value", value


def _of_runs(pair: list[RunOrProblem]) -> Views:
    tensor = compare.TensorName("layer", "output", "train", port="output.0")
    two, layer = "run=first&run=second", "site=layer&kind=output&mode=train&port=output.0"
    yield "metrics", f"metrics?{two}", run_overview.metrics_view(pair, SCREEN)
    made: object = compare.compare_curves(pair, tensor, "rms", SCREEN)
    yield "compare/curves", f"compare/curves?{two}&{layer}&stat=rms", made
    made = compare.compare_histograms(pair, tensor, 2, AXIS, SCREEN)
    yield "compare/histograms", f"compare/histograms?{two}&{layer}&axis=linear&step=2", made
    made = compare.compare_over_time(pair, tensor, AXIS, SCREEN)
    yield "compare/over-time", f"compare/over-time?{two}&{layer}&axis=linear", made
    made = heatmap.difference(pair, RMS, SCREEN, ratio=True)
    yield "compare/difference", f"compare/difference?{two}&{OF_KIND}&how=ratio", made


def digests(folder: Path) -> dict[str, str]:
    """A digest of the message of each view, by its request."""

    return {request: hashlib.sha256(encode(view)).hexdigest() for _, request, view in built(folder)}
