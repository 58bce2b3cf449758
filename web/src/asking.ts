/** What charts ask the server for: an address, and what its answer belongs to. */

import type { Scope } from "./scope.svelte";
import type { SeriesEntry } from "./wire.gen";

export type Asked = readonly [address: string, identity: string];

/** One statistic of a series over the steps. */
export function scalarOf(scope: Scope, series: SeriesEntry, width = scope.width): Asked {
  const stat = scope.statOf(series.kind);
  const [address, identity] = ofSeries(scope, series, "scalar");
  const which = `${screenOf(scope, width)}&stat=${encodeURIComponent(stat)}${smoothOf(scope)}`;
  return [`${address}&${which}`, `${identity}/${stat}`];
}

/** The histogram of a series over the steps. */
export function histogramOf(scope: Scope, series: SeriesEntry, bins: number, width = scope.width): Asked {
  const { axis } = scope.selection;
  const [address, identity] = ofSeries(scope, series, "histogram");
  return [
    `${address}&${screenOf(scope, width)}&axis=${axis}&height=${bins}${formatOf(scope)}`,
    `${identity}/${axis}`,
  ];
}

/** The histogram of a series at the cross-hair. */
export function stepHistogramOf(scope: Scope, series: SeriesEntry, bins: number): Asked {
  const { axis } = scope.selection;
  const [address, identity] = ofSeries(scope, series, "step-histogram");
  return [`${address}&axis=${axis}&height=${bins}${formatOf(scope)}${stepOf(scope)}`, `${identity}/${axis}`];
}

function ofSeries({ selection }: Scope, { series, rank }: SeriesEntry, route: string): Asked {
  const run = selection.run ?? "";
  return [
    `api/run/${encodeURIComponent(run)}/${route}?series=${series}&rank=${rank}`,
    `${run}/${series}/${rank}`,
  ];
}

/** Width and steps of the plots. */
export function screenOf(scope: Scope, width = scope.width): string {
  const { every, first, last } = scope.selection;
  const parts = [`width=${width}`];
  if (every > 1) parts.push(`every=${every}`);
  if (first !== null) parts.push(`first=${Math.round(first)}`);
  if (last !== null) parts.push(`last=${Math.round(last)}`);
  return parts.join("&");
}

/** The step to show, where that is not the last one of all, and of how many steps one counts. */
export function stepOf({ asked, selection }: Scope): string {
  return `${asked === null ? "" : `&step=${asked}`}${selection.every > 1 ? `&every=${selection.every}` : ""}`;
}

/** Weight of the running mean. */
export function smoothOf({ selection }: Scope): string {
  return selection.smooth > 0 ? `&smooth=${selection.smooth / 100}` : "";
}

/** The number format whose limits are marked. */
export function formatOf({ selection }: Scope): string {
  const { axis, format } = selection;
  return axis === "exponent" && format !== null ? `&format=${encodeURIComponent(format)}` : "";
}
