/** Options and columns for uPlot: one number over the steps, of one run or of several. */

import uPlot from "uplot";
import { count, ticks } from "../format";
import type { ScalarView } from "../wire.gen";
import type { Palette } from "./colors";
import { logTicks, RIGHT, type Span, stepTicks } from "./scale";

/** Between ticks: uPlot's own end at 1e16, and a loss that explodes goes on. */
const SPACINGS = Array.from({ length: 320 }, (_, at) => at - 16).flatMap((power) =>
  [1, 2, 2.5, 5].map((factor) => Number(`${factor}e${power}`)),
);

/** Pixels between ticks. */
const SPACE = 26;

export interface Curve {
  readonly view: ScalarView;
  readonly color: string;
  /** Lengths of dashes and gaps; a line without any is whole. */
  readonly dash?: readonly number[];
  /** Whether the line is broad, so that it is visible below another one. */
  readonly broad?: boolean;
}

export interface LineStyle {
  readonly width: number;
  readonly height: number;
  /** Room to the left of the plot. */
  readonly left: number;
  readonly log: boolean;
  readonly colors: Palette;
  /** Whether the steps are labeled. */
  readonly labeled: boolean;
}

type Column = (number | null)[];
/** Columns of each curve: low, high, last, smooth. */
const PER_CURVE = 4;
/** `uPlot.join` keeps null, which is a gap; a step that only other curves have is none. */
const KEPT_GAPS = 1;

/** Columns as uPlot takes them: null is a gap. A logarithmic axis has no place for what is not positive. */
export function lineColumns(curves: readonly Curve[], log: boolean): uPlot.AlignedData {
  const drawn = (column: Float64Array): Column =>
    Array.from(column, (x) => (!Number.isFinite(x) || (log && x <= 0) ? null : x));
  const tables = curves.map(({ view }): [number[], ...Column[]] => [
    Array.from(view.last_steps),
    drawn(view.low),
    drawn(view.high),
    drawn(view.last),
    view.smooth.length > 0
      ? drawn(view.smooth)
      : view.low.length > 0
        ? new Array(view.low.length).fill(null)
        : [],
  ]);
  const [only] = tables;
  if (tables.length === 1 && only !== undefined) return only;
  return uPlot.join(
    tables,
    tables.map((table) => table.map(() => KEPT_GAPS)),
  );
}

/** Lowest and highest number at the visible steps, with a margin. */
export function valueSpan(data: uPlot.AlignedData, log: boolean, span: Span): Span {
  let [min, max] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const [steps, ...columns] = data;
  for (const column of columns) {
    for (let at = 0; at < column.length; at++) {
      const x = column[at];
      // With the neighbors beyond both ends, which the line comes from and goes to.
      const isSeen = (steps[at + 1] ?? span.min) >= span.min && (steps[at - 1] ?? span.max) <= span.max;
      if (x === null || x === undefined || !isSeen) continue;
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
  curves: () => readonly Curve[],
): uPlot.Options {
  const { colors } = style;
  const axis = {
    stroke: colors.muted,
    font: colors.font,
    grid: { stroke: colors.grid, width: 1 },
    ticks: { show: false },
  };
  return {
    width: style.width,
    height: style.height,
    padding: [6, RIGHT, style.labeled ? 0 : 6, 0],
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
        size: style.labeled ? 24 : 0,
        gap: 6, // a curve at the lower end has dots
        splits: (chart) => stepTicks(span(), chart.over.clientWidth || style.width - style.left - RIGHT),
        values: (_chart, splits) => splits.map((step) => (style.labeled ? count(step) : "")),
      },
      {
        ...axis,
        size: style.left,
        gap: 8,
        // Two labels at least: the next round spacing is at most twice as wide.
        space: (_chart, _axis, _min, _max, room) => Math.min(SPACE, room / 4.1),
        ...(style.log
          ? {
              splits: () => logTicks(values(), style.height / SPACE),
              filter: (_chart: uPlot, splits: number[]) => splits,
            }
          : { incrs: SPACINGS }),
        values: (_chart, splits) => ticks(splits),
      },
    ],
    series: [{}, ...curves().flatMap(seriesOf)],
    bands: curves().map(({ color }, at) => ({
      series: [at * PER_CURVE + 2, at * PER_CURVE + 1],
      fill: `color-mix(in srgb, ${color} 28%, transparent)`,
    })),
    hooks: { draw: [(chart) => markBad(chart, curves(), colors)] },
  };
}

function seriesOf({ view, color, dash = [], broad = false }: Curve): uPlot.Series[] {
  const width = broad ? 3 : 1.6;
  const hidden = { stroke: "transparent", points: { show: false } };
  const faint = view.smooth.length > 0;
  const stroke = faint ? `color-mix(in srgb, ${color} 40%, transparent)` : color;
  return [
    hidden,
    hidden,
    {
      stroke,
      dash: [...dash],
      width: faint ? 1 : width,
      points: faint ? { show: false } : { size: 2.4 + width, fill: color, stroke: color },
    },
    { stroke: color, dash: [...dash], width: 2, points: { show: false } },
  ];
}

/** A mark at the top of the plot where a value was NaN or infinite: the line alone would only show a gap. */
function markBad(chart: uPlot, curves: readonly Curve[], colors: Palette): void {
  const { ctx, bbox } = chart;
  const height = (curves.length === 1 ? 16 : 6) * devicePixelRatio; // the mark of a trace hides the upper part
  ctx.save();
  curves.forEach(({ view, color }, row) => {
    ctx.fillStyle = curves.length === 1 ? colors.bad : color;
    view.not_finite.forEach((count, at) => {
      if (count === 0) return;
      const x = chart.valToPos(view.last_steps[at] ?? 0, "x", true);
      ctx.fillRect(Math.round(x) - 1, bbox.top + row * height, Math.max(2, 2 * devicePixelRatio), height);
    });
  });
  ctx.restore();
}
