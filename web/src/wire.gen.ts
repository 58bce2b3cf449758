// Generated from the Python records by `python -m layerscope.server.wire`. Do not edit.

export type AxisKind = "linear" | "symlog" | "log";

/** A statistic or KPI over the steps: lowest, highest and last value of each column of the screen. */
export interface ScalarView {
  readonly name: string;
  readonly thinned: boolean;
  readonly points: number;
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
  readonly low: Float64Array;
  readonly high: Float64Array;
  readonly last: Float64Array;
  readonly not_finite: Float64Array;
}

/** Histogram over time: how many elements lie in each bin of each column, and what lies outside the bins. */
export interface HistogramView {
  readonly axis: AxisKind;
  readonly points: number;
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
  readonly left: Float64Array;
  readonly right: Float64Array;
  readonly summaries: Float64Array;
  readonly edges: Float64Array;
  readonly ticks: Float64Array;
  readonly counts: Float32Array;
  readonly below: Float64Array;
  readonly above: Float64Array;
  readonly zeros: Float64Array;
  readonly nan: Float64Array;
  readonly pos_inf: Float64Array;
  readonly neg_inf: Float64Array;
  readonly total: Float64Array;
  readonly smallest: Float64Array;
  readonly largest: Float64Array;
  readonly shares: readonly number[];
  readonly quantiles: Float64Array;
}

/** One line of the list of runs. */
export interface RunEntry {
  readonly name: string;
  readonly status: string;
  readonly last_step: number | null;
  readonly kpis: readonly string[];
  readonly kpi_values: Float64Array;
  readonly sparkline: Float64Array;
  readonly problem: string | null;
}

/** The runs that are served. */
export interface RunList {
  readonly folder: string;
  readonly version: string;
  readonly runs: readonly RunEntry[];
}

/** One history that a run holds. */
export interface SeriesEntry {
  readonly series: number;
  readonly rank: number;
  readonly site: string;
  readonly port: string;
  readonly kind: string;
  readonly mode: string;
  readonly dtype: string;
  readonly reading: string;
  readonly shape: readonly number[];
}

/** Everything that can be shown of a run: its series, in the order of first appearance, and the statistics. */
export interface SiteList {
  readonly run: string;
  readonly stats: readonly string[];
  readonly series: readonly SeriesEntry[];
}

/** A note, a warning or a loss of rows at a step. */
export interface EventEntry {
  readonly step: number;
  readonly level: string;
  readonly text: string;
}

/** What is always in sight of a run: its KPIs over the steps and what happened. */
export interface Timeline {
  readonly run: string;
  readonly first_step: number | null;
  readonly last_step: number | null;
  readonly kpis: readonly ScalarView[];
  readonly events: readonly EventEntry[];
}

/** Sent over the live channel when a run has new rows, another status, appeared or vanished. */
export interface Change {
  readonly run: string;
  readonly status: string;
  readonly revision: string;
}

/** Why a request was refused, as JSON, with a status of 4xx or 5xx. */
export interface Problem {
  readonly problem: string;
}
