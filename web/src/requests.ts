/** Requests of charts: an address, and the identity of what the answer is about. */

import type { PageState } from "./pagestate.svelte";
import type { SeriesEntry } from "./wire.gen";

export type ChartRequest = readonly [address: string, identity: string];

/** One statistic of a series over the steps. */
export function scalarOf(page: PageState, series: SeriesEntry, width = page.width): ChartRequest {
  const stat = page.statOf(series.kind);
  const [address, identity] = ofSeries(page, series, "scalar");
  const which = `${screenOf(page, width)}&stat=${encodeURIComponent(stat)}${smoothOf(page)}`;
  return [`${address}&${which}`, `${identity}/${stat}`];
}

/** The histogram of a series over the steps. */
export function histogramOf(
  page: PageState,
  series: SeriesEntry,
  bins: number,
  width = page.width,
): ChartRequest {
  const { axis } = page.selection;
  const [address, identity] = ofSeries(page, series, "histogram");
  return [
    `${address}&${screenOf(page, width)}&axis=${axis}&height=${bins}${formatOf(page)}`,
    `${identity}/${axis}`,
  ];
}

/** The histogram of a series at the crosshair. */
export function stepHistogramOf(page: PageState, series: SeriesEntry, bins: number): ChartRequest {
  const { axis } = page.selection;
  const [address, identity] = ofSeries(page, series, "step-histogram");
  return [`${address}&axis=${axis}&height=${bins}${formatOf(page)}${stepOf(page)}`, `${identity}/${axis}`];
}

function ofSeries({ selection }: PageState, { series, rank }: SeriesEntry, route: string): ChartRequest {
  const run = selection.run ?? "";
  return [
    `api/run/${encodeURIComponent(run)}/${route}?series=${series}&rank=${rank}`,
    `${run}/${series}/${rank}`,
  ];
}

/** Width and steps of the plots. */
export function screenOf(page: PageState, width = page.width): string {
  const { every, first, last } = page.selection;
  const parts = [`width=${width}`];
  if (every > 1) parts.push(`every=${every}`);
  if (first !== null) parts.push(`first=${Math.round(first)}`);
  if (last !== null) parts.push(`last=${Math.round(last)}`);
  return parts.join("&");
}

/** The step to show, where it is not the last one, and the stride of steps. */
export function stepOf({ requestedStep, selection }: PageState): string {
  return `${requestedStep === null ? "" : `&step=${requestedStep}`}${selection.every > 1 ? `&every=${selection.every}` : ""}`;
}

/** Weight of the running mean. */
export function smoothOf({ selection }: PageState): string {
  return selection.smooth > 0 ? `&smooth=${selection.smooth / 100}` : "";
}

/** The number format whose limits are marked. */
export function formatOf({ selection }: PageState): string {
  const { axis, format } = selection;
  return axis === "exponent" && format !== null ? `&format=${encodeURIComponent(format)}` : "";
}
