/** The selection, and how the address writes it: reloading the address restores the view. */

import type { AxisKind, SeriesEntry } from "./wire.gen";

/** The views of a run, in the order of their tabs. */
export const VIEWS = ["charts", "graph", "heatmap", "findings", "traces", "compare", "tensors"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface Selection {
  run: string | null;
  view: ViewName;
  site: string | null;
  port: string | null;
  kind: string | null;
  mode: string | null;
  /** Of forwards inside `run.context(name)`; "" for those outside any. */
  context: string | null;
  /** Of several data types or phases of one tensor; the newest when null. */
  dtype: string | null;
  phase: string | null;
  rank: number;
  stat: string;
  axis: AxisKind;
  /** The number format whose limits stand on the exponent axis; one that suits the tensor when null. */
  format: string | null;
  /** Whether the histogram is that of one step, not over time. */
  oneStep: boolean;
  /** Whether the statistic is drawn on a logarithmic axis. */
  log: boolean;
  metric: string | null;
  /** Metrics that are drawn into the same chart. */
  metrics: readonly string[];
  metricLog: boolean;
  /** The step the crosshair is pinned to. */
  step: number | null;
  /** Every n-th step is shown. */
  every: number;
  /** The range of steps that is shown. */
  first: number | null;
  last: number | null;
  /** The trace, its selected operation, its open nodes ("3.17"), and the node that is shown alone. */
  trace: string | null;
  op: number | null;
  opened: string | null;
  within: number | null;
  /** The selected module of the trace, instead of an operation. */
  module: number | null;
  /** Of values in it: the kind of picture, the index on the axes that it leaves out ("1.3"), and its first tile. */
  picture: string | null;
  valueIndex: string | null;
  tile: number | null;
  /** The field that the nodes of a trace are colored by. */
  traceColor: string | null;
  /** Whether every pass of a loop is a node of its own. */
  unrolled: boolean;
  /** In the graph: the entered node, the open nodes, the sites of pinned panels (see `keysIn`). */
  entered: string | null;
  expanded: string | null;
  pins: string | null;
  /** The selected merge, instead of the site (see `mergeKey`). */
  merge: string | null;
  /** The kind whose statistic colors the graph; "none" for no colors. */
  colorKind: string | null;
  /** Runs that are compared with the chosen one. */
  runs: readonly string[];
  /** How they are compared: curves when null. */
  comparing: string | null;
  /** Whether a difference is shown as ratio. */
  ratio: boolean;
  /** Weight of earlier values in smoothed curves, in percent. */
  smooth: number;
  /** Whether the colors of the heat map are linear, not logarithmic. */
  heatLinear: boolean;
  /** Whether training and evaluation are drawn in one chart. */
  overlay: boolean;
  /** The requested named tensor; a run that does not have it shows the nearest one, and the address stays. */
  pane: string | null;
  beside: string | null;
  type: string | null;
  iteration: number | null;
  node: string | null;
  role: string | null;
  sample: number | null;
  /** The loss whose gradient is shown; null for the value itself. */
  loss: string | null;
  /** The statistic over the steps, and the form of the values. */
  tensorStat: string | null;
  valueForm: string | null;
  /** Whether all links are drawn, not only those of the chosen node. */
  allLinks: boolean;
  /** Tensors whose samples are compared, and types of steps whose metrics are (see `keysIn`). */
  against: string | null;
  types: string | null;
}

export const START: Readonly<Selection> = {
  run: null,
  view: "charts",
  site: null,
  port: null,
  kind: null,
  mode: null,
  context: null,
  dtype: null,
  phase: null,
  rank: 0,
  stat: "rms",
  axis: "linear",
  format: null,
  oneStep: false,
  log: false,
  metric: null,
  metrics: [],
  metricLog: false,
  step: null,
  every: 1,
  first: null,
  last: null,
  trace: null,
  op: null,
  opened: null,
  within: null,
  module: null,
  picture: null,
  valueIndex: null,
  tile: null,
  traceColor: null,
  unrolled: false,
  entered: null,
  expanded: null,
  pins: null,
  merge: null,
  colorKind: null,
  runs: [],
  comparing: null,
  ratio: false,
  smooth: 0,
  heatLinear: false,
  overlay: false,
  pane: null,
  beside: null,
  type: null,
  iteration: null,
  node: null,
  role: null,
  sample: null,
  loss: null,
  tensorStat: null,
  valueForm: null,
  allLinks: false,
  against: null,
  types: null,
};

const TEXTS = [
  "run",
  "site",
  "port",
  "kind",
  "mode",
  "context",
  "dtype",
  "phase",
  "stat",
  "format",
  "metric",
  "trace",
  "opened",
  "picture",
  "valueIndex",
  "traceColor",
  "entered",
  "expanded",
  "pins",
  "merge",
  "colorKind",
  "comparing",
  "pane",
  "beside",
  "type",
  "node",
  "role",
  "loss",
  "tensorStat",
  "valueForm",
  "against",
  "types",
] as const;
const NUMBERS = [
  "rank",
  "step",
  "every",
  "first",
  "last",
  "op",
  "within",
  "module",
  "tile",
  "smooth",
  "iteration",
  "sample",
] as const;
const FLAGS = [
  "oneStep",
  "log",
  "metricLog",
  "unrolled",
  "ratio",
  "heatLinear",
  "overlay",
  "allLinks",
] as const;
const LISTS = ["metrics", "runs"] as const;
/** In percent: above it a curve hardly moves. */
export const MOST_SMOOTH = 99;
const AXES: readonly string[] = ["linear", "symlog", "exponent"] satisfies AxisKind[];

/** The selection of an address's fragment; missing or invalid fields have their defaults. */
export function parsed(hash: string): Selection {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const selection: Selection = { ...START };
  for (const name of TEXTS) {
    const text = given.get(name);
    if (text !== null) selection[name] = text;
  }
  for (const name of NUMBERS) {
    const text = given.get(name);
    if (text !== null && /^-?\d{1,16}$/.test(text)) selection[name] = Number(text);
  }
  const axis = given.get("axis");
  if (axis !== null && AXES.includes(axis)) selection.axis = axis as AxisKind;
  const view = VIEWS.find((name) => name === given.get("view"));
  if (view !== undefined) selection.view = view;
  for (const name of FLAGS) selection[name] = given.get(name) === "1";
  selection.every = Math.max(selection.every, 1);
  selection.smooth = Math.min(Math.max(selection.smooth, 0), MOST_SMOOTH);
  for (const name of LISTS) selection[name] = [...new Set(given.getAll(name))];
  return selection;
}

/** The fragment of a selection: only fields that differ from the defaults. */
export function fragment(selection: Selection): string {
  const out = new URLSearchParams();
  for (const name of [...TEXTS, ...NUMBERS, "axis", "view"] as const) {
    const value = selection[name];
    if (value !== null && value !== START[name]) out.set(name, String(value));
  }
  for (const name of FLAGS) if (selection[name]) out.set(name, "1");
  for (const name of LISTS) for (const text of selection[name]) out.append(name, text);
  return `#${out.toString()}`;
}

/** Series that differ only in data type or phase, oldest first. */
export function variantsOf(series: readonly SeriesEntry[], of: SeriesEntry): SeriesEntry[] {
  const same = ["site", "port", "kind", "mode", "context", "rank"] as const;
  return series.filter((entry) => same.every((name) => entry[name] === of[name]));
}

/** A context as a choice shows it. */
export function contextText(context: string): string {
  return context === "" ? "no context" : context;
}

/** The mode and context of a series as one text. */
export function settingName({ mode, context }: { mode: string; context: string }): string {
  return [mode === "train" && context !== "" ? "" : mode, context].filter(Boolean).join(" ");
}

/** The contexts of some series, in the order of first appearance. */
export function contextsOf(series: readonly SeriesEntry[]): string[] {
  return [...new Set(series.map((entry) => entry.context))];
}

/** The requested context if it exists, else the first. */
export function contextAmong(contexts: readonly string[], wanted: string | null): string {
  return contexts.includes(wanted ?? "") ? (wanted ?? "") : (contexts[0] ?? "");
}

/** The name of a tensor in exported files: port, mode, context and rank only where the site has several. */
export function tensorName(series: SeriesEntry, ofSite: readonly SeriesEntry[]): string {
  const ofKind = ofSite.filter((entry) => entry.site === series.site && entry.kind === series.kind);
  const several = (name: "port" | "rank") => new Set(ofKind.map((entry) => entry[name])).size > 1;
  const parts = [
    series.site,
    series.kind,
    several("port") ? series.port : "",
    series.mode === "train" ? "" : series.mode,
    series.context,
    several("rank") ? `rank ${series.rank}` : "",
  ];
  return parts.filter(Boolean).join(" ");
}

/** The series of a site that agrees with most of the selection, the kind counting most; of equal ones the newest. */
export function seriesFor(series: readonly SeriesEntry[], selection: Selection): SeriesEntry | null {
  const score = (entry: SeriesEntry) =>
    (entry.kind === (selection.kind ?? "output") ? 16 : 0) +
    (entry.port === selection.port ? 8 : 0) +
    (entry.mode === (selection.mode ?? "train") ? 4 : 0) +
    (entry.context === (selection.context ?? "") ? 2 : 0) +
    (entry.rank === selection.rank ? 1 : 0);
  let best: SeriesEntry | null = null;
  for (const entry of series) if (best === null || score(entry) > score(best)) best = entry;
  if (best === null) return null;
  const variants = variantsOf(series, best);
  const agreeing = (entry: SeriesEntry) =>
    (entry.dtype === selection.dtype ? 2 : 0) + (entry.phase === selection.phase ? 1 : 0);
  const most = Math.max(...variants.map(agreeing));
  return variants.filter((entry) => agreeing(entry) === most).at(-1) ?? best;
}

/** Names of nodes in one text: they can contain any character, so each is encoded by itself. */
export function keysText(keys: Iterable<string>): string {
  return [...keys].map(encodeURIComponent).join(" ");
}

export function keysIn(text: string | null): string[] {
  return (text ?? "").split(" ").filter(Boolean).map(decoded);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
