/** Draws the histogram of one tensor at one step, on an axis that it shares with others. */

import { share, ticks } from "../format";
import type { HistogramsView, HistogramView, StepHistogram } from "../wire.gen";
import type { Palette } from "./colors";
import type { Cell } from "./export";
import type { Target } from "./histogramovertime";
import { rimmed } from "./letters";
import { drawLimits } from "./limits";
import { placeOf } from "./scale";

const AXIS = 18;
const HEADROOM = 0.92;

/** The largest share that one run has in one bin: all are drawn on that scale, so that their heights can be compared. */
function mostOf(view: HistogramsView): number {
  const shares = view.runs.map(
    ({ counts, numbers }) => counts.reduce((a, b) => Math.max(a, b), 0) / (numbers[0] || 1),
  );
  return Math.max(...shares);
}

/** `exporting`: with the labels of the axis, which the page shows once below all histograms. */
export function drawHistogram(
  { canvas, width, height, ratio }: Target,
  view: HistogramsView,
  run: StepHistogram,
  color: string,
  colors: Palette,
  exporting: boolean,
): void {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round((height + (exporting ? AXIS : 0)) * ratio);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  const bin = width / (view.edges.length - 1);
  const texts = ticks(Array.from(view.ticks), view.axis === "exponent");
  context.font = colors.font;
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.lineWidth = 1;
  view.ticks.forEach((x, at) => {
    const place = Math.round(placeOf(x, view.edges) * bin) + 0.5;
    context.strokeStyle = x === 0 ? colors.muted : colors.grid;
    context.setLineDash(x === 0 ? [5, 4] : []);
    context.beginPath();
    context.moveTo(place, 0);
    context.lineTo(place, height);
    context.stroke();
    context.fillStyle = colors.muted;
    if (exporting) context.fillText(texts[at] ?? "", place, height + AXIS - 2);
  });
  context.setLineDash([]);
  context.fillStyle = color;
  context.globalAlpha = 0.8;
  context.beginPath();
  context.moveTo(0, height);
  const highest = (mostOf(view) || 1) * (run.numbers[0] || 1);
  run.counts.forEach((counted, at) => {
    const y = Math.min(height * (1 - (HEADROOM * counted) / highest), height - (counted > 0 ? 1 : 0));
    context.lineTo(at * bin, y);
    context.lineTo((at + 1) * bin, y);
  });
  context.lineTo(width, height);
  context.closePath();
  context.fill();
  context.globalAlpha = 1;
  scaleLine(context, view, run, height, width, colors);
  if (view.limits === null) return;
  const place = (value: number) => placeOf(value, view.edges) * bin;
  const field = { left: 0, top: 0, width, height, upright: true, edges: view.edges, place };
  drawLimits(context, view.limits, field, colors);
}

/** What the height means. */
function scaleLine(
  context: CanvasRenderingContext2D,
  view: HistogramsView,
  run: StepHistogram,
  height: number,
  width: number,
  colors: Palette,
): void {
  const y = Math.round(height * (1 - HEADROOM)) + 0.5;
  const among = view.runs.length > 1 ? "highest bin of all runs" : "highest bin";
  context.strokeStyle = colors.muted;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.stroke();
  context.setLineDash([]);
  const zeros = view.axis === "exponent" ? (run.numbers[3] ?? 0) : 0;
  const most = mostOf(view);
  const texts = [most > 0 ? `${among}: ${share(most, 1)}` : "nothing on this axis"];
  if (zeros > 0) texts.push(`${share(zeros, run.numbers[0] ?? 0)} are 0, which has no exponent`);
  context.fillStyle = colors.text;
  context.textAlign = "left";
  context.textBaseline = "top";
  texts.forEach((text, at) => {
    rimmed(context, text, 4, y + 3 + 14 * at, colors);
  });
}

/** One column of a histogram over time as a histogram of its own; means are not known of it. */
export function columnOf(view: HistogramView, at: number): HistogramsView {
  const bins = view.edges.length - 1;
  const only = (column: Float64Array) => column.subarray(at, at + 1);
  const number = (column: Float64Array) => column[at] ?? 0;
  const infinite = number(view.pos_inf) + number(view.neg_inf);
  const counted = [view.total, view.below, view.above, view.zeros, view.nan].map(number);
  const ends = [view.smallest, view.largest].map(number);
  const { limits } = view;
  return {
    axis: view.axis,
    edges: view.edges,
    ticks: view.ticks,
    runs: [
      {
        run: "",
        step: number(view.last_steps),
        lacking: "",
        counts: Float64Array.from(view.counts.subarray(at * bins, (at + 1) * bins)),
        numbers: Float64Array.from([...counted, infinite]),
        extremes: Float64Array.from([...ends, Number.NaN, Number.NaN]),
      },
    ],
    limits: limits && {
      ...limits,
      to_zero: only(limits.to_zero),
      subnormal: only(limits.subnormal),
      too_large: only(limits.too_large),
    },
  };
}

/** The bins of a tensor at a step as a table. */
export function binTable(
  tensor: string,
  view: HistogramsView,
  run: StepHistogram,
): readonly (readonly Cell[])[] {
  const bins = Array.from(run.counts, (counted, at) => [
    tensor,
    run.step,
    view.edges[at],
    view.edges[at + 1],
    counted,
  ]);
  return [["tensor", "step", "from", "to", "elements"], ...bins];
}
