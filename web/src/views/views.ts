/** Which component shows which view. */

import type { Component } from "svelte";
import { isClosed } from "../offline";
import type { PageState } from "../pagestate.svelte";
import { VIEWS, type ViewName } from "../selection";
import ChartsView from "./ChartsView.svelte";
import CompareView from "./CompareView.svelte";
import FindingsView from "./FindingsView.svelte";
import GraphView from "./GraphView.svelte";
import HeatMapView from "./HeatMapView.svelte";
import TensorsView from "./TensorsView.svelte";
import TracesView from "./TracesView.svelte";

export type View = Component<{ page: PageState; theme: "dark" | "light" }>;

const COMPONENTS: Record<ViewName, View> = {
  charts: ChartsView,
  graph: GraphView,
  heatmap: HeatMapView,
  findings: FindingsView,
  traces: TracesView,
  compare: CompareView,
  tensors: TensorsView,
};

/** What a tab says. */
export const TITLES: Record<ViewName, string> = {
  charts: "Charts",
  graph: "Graph",
  heatmap: "Heat map",
  findings: "Findings",
  traces: "Traces",
  compare: "Compare",
  tensors: "Tensors",
};

/** The views that can be shown: a file holds one run, and no named tensors. */
export const SHOWN: readonly ViewName[] = VIEWS.filter(
  (view) => !isClosed || (view !== "tensors" && view !== "compare"),
);

export function viewNamed(name: ViewName): View {
  return COMPONENTS[name];
}
