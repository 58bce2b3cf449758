/** Options and columns for uPlot: one number over the steps. */

import type uPlot from "uplot";
import { tick } from "../format";
import type { ScalarView } from "../wire.gen";
import type { Palette } from "./colours";
import { LEFT, logTicks, RIGHT, type Span, stepTicks } from "./scale";

export interface LineStyle {
  readonly width: number;
  readonly height: number;
  readonly log: boolean;
  readonly colour: string;
  readonly colours: Palette;
  /** Whether the steps are labelled. */
  readonly labelled: boolean;
}

/** Columns as uPlot takes them: null is a gap. A logarithmic axis has no place for what is not positive. */
export function lineColumns(view: ScalarView, log: boolean): uPlot.AlignedData {
  const drawn = (column: Float64Array): (number | null)[] =>
    Array.from(column, (x) => (!Number.isFinite(x) || (log && x <= 0) ? null : x));
  return [Array.from(view.last_steps), drawn(view.low), drawn(view.high), drawn(view.last)];
}

/** Lowest and highest number drawn, with some room. */
export function valueSpan(data: uPlot.AlignedData, log: boolean): Span {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const column of [data[1], data[2], data[3]]) {
    for (const x of column ?? []) {
      if (x === null || x === undefined) continue;
      if (x < min) min = x;
      if (x > max) max = x;
    }
  }
  if (min > max) return log ? { min: 0.1, max: 1 } : { min: 0, max: 1 };
  if (log) return min === max ? { min: min / 2, max: max * 2 } : { min: min / 1.15, max: max * 1.15 };
  if (min === max) {
    const room = Math.abs(min) * 0.1 || 1;
    return { min: min - room, max: max + room };
  }
  const room = (max - min) * 0.06;
  return { min: min >= 0 && min - room < 0 ? 0 : min - room, max: max + room };
}

export function lineOptions(
  style: LineStyle,
  span: () => Span,
  values: () => Span,
  view: () => ScalarView,
): uPlot.Options {
  const { colours, colour } = style;
  const axis = {
    stroke: colours.muted,
    font: colours.font,
    grid: { stroke: colours.grid, width: 1 },
    ticks: { show: false },
  };
  return {
    width: style.width,
    height: style.height,
    padding: [6, RIGHT, style.labelled ? 0 : 6, 0],
    legend: { show: false },
    cursor: { show: false },
    select: { show: false, left: 0, top: 0, width: 0, height: 0 },
    scales: {
      x: { time: false, range: () => [span().min, span().max] },
      y: { distr: style.log ? 3 : 1, range: () => [values().min, values().max] },
    },
    axes: [
      {
        ...axis,
        size: style.labelled ? 22 : 0,
        gap: 4,
        splits: (chart) => stepTicks(span(), chart.over.clientWidth || style.width - LEFT - RIGHT),
        values: (_chart, splits) =>
          splits.map((step) => (style.labelled ? step.toLocaleString("en-US") : "")),
      },
      {
        ...axis,
        size: LEFT,
        gap: 8,
        space: 26,
        ...(style.log
          ? {
              splits: () => logTicks(values(), style.height / 26),
              filter: (_chart: uPlot, splits: number[]) => splits,
            }
          : {}),
        values: (_chart, splits) => splits.map((x) => (x === null ? "" : tick(x, false))),
      },
    ],
    series: [
      {},
      { stroke: "transparent", points: { show: false } },
      { stroke: "transparent", points: { show: false } },
      { stroke: colour, width: 1.6, points: { size: 4, fill: colour, stroke: colour } },
    ],
    bands: [{ series: [2, 1], fill: `color-mix(in srgb, ${colour} 28%, transparent)` }],
    hooks: { draw: [(chart) => markBad(chart, view(), colours)] },
  };
}

/** A mark at the top of the plot where a value was NaN or infinite: the line alone would only show a gap. */
function markBad(chart: uPlot, view: ScalarView, colours: Palette): void {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.fillStyle = colours.bad;
  view.not_finite.forEach((count, at) => {
    if (count === 0) return;
    const x = chart.valToPos(view.last_steps[at] ?? 0, "x", true);
    ctx.fillRect(Math.round(x) - 1, bbox.top, Math.max(2, 2 * devicePixelRatio), 6 * devicePixelRatio);
  });
  ctx.restore();
}
