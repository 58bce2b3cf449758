/** Draws a heat map: one statistic of many tensors over the steps, a row per tensor, a column per step. */

import { count, value } from "../format";
import type { ColorScale, HeatMapView } from "../wire.gen";
import { css, type Palette, packed, RAMP_STEPS } from "./colors";
import type { Target } from "./histogramovertime";
import { RIGHT, type Span, stepTicks, xOf } from "./scale";

export const AXIS = 20;
/** A logarithmic scale of both signs reaches that many decades down from the largest magnitude. */
const DECADES = 10;

/** How numbers become colors. */
export interface Shading {
  /** Ends of the scale: numbers, or decimal logarithms of magnitudes. */
  readonly low: number;
  readonly high: number;
  readonly log: boolean;
  /** Whether the middle of the colors is zero; on a logarithmic scale it is every magnitude below the lower end. */
  readonly diverging: boolean;
  /** Whether some numbers lie beyond the ends. */
  readonly cutLow: boolean;
  readonly cutHigh: boolean;
}

/** The visible rows: which row of cells each one shows, −1 for a heading. */
export interface Sight {
  readonly cells: readonly number[];
  /** Place of the first of them, in pixels from the top of the plot, and the height of each. */
  readonly top: number;
  readonly rowHeight: number;
}

export function shadingOf(scale: ColorScale, log: boolean, diverging: boolean): Shading | null {
  const { low, high, robust_low, robust_high, abs_low, abs_high } = scale;
  if (low === null || high === null || robust_low === null || robust_high === null) return null;
  if (diverging && log && abs_low !== null && abs_high !== null) {
    const to = Math.log10(abs_high);
    const from = Math.floor(Math.max(Math.log10(abs_low), to - DECADES));
    return { low: from, high: to, log, diverging, cutLow: false, cutHigh: false };
  }
  if (diverging || (!log && low < 0 && high > 0)) {
    const most = Math.max(-low, high);
    const usual = Math.max(-robust_low, robust_high) || most || 1;
    const far = usual * 1.5 >= most ? most || 1 : usual;
    return { low: -far, high: far, log: false, diverging: true, cutLow: -low > far, cutHigh: high > far };
  }
  if (log && abs_low !== null && abs_high !== null) {
    const [from, to] = [Math.log10(abs_low), Math.log10(abs_high)];
    const room = to - from < 1e-6 ? 0.5 : 0;
    return {
      low: from - room,
      high: to + room,
      log: true,
      diverging: false,
      cutLow: true,
      cutHigh: false,
    };
  }
  const from = low >= 0 && robust_low < 0.3 * robust_high ? 0 : robust_low;
  const to = robust_high > from ? robust_high : from + (Math.abs(from) || 1);
  return { low: from, high: to, log: false, diverging: false, cutLow: low < from, cutHigh: high > to };
}

/** The numbers at the ends of the colors. */
export function endsOf({ low, high, log, diverging }: Shading): [least: number, most: number] {
  if (!log) return [low, high];
  return [diverging ? -(10 ** high) : 10 ** low, 10 ** high];
}

/** A color for each number; 0, which is transparent, where there is none. */
export function painter(shading: Shading | null, colors: Palette): (x: number) => number {
  const [nan, infinite] = [packed(colors.bad), packed(colors.infinite)];
  const ramp = shading?.diverging ? colors.diverging : colors.ramp;
  const { low, high, log, diverging } = shading ?? { low: 0, high: 1, log: false, diverging: false };
  const factor = RAMP_STEPS / (high - low);
  const middle = RAMP_STEPS / 2;
  const colorAt = (at: number) => ramp[at <= 0 ? 0 : at >= RAMP_STEPS ? RAMP_STEPS - 1 : at | 0] ?? 0;
  return (x) => {
    if (Number.isNaN(x)) return nan;
    if (x === Number.POSITIVE_INFINITY) return infinite;
    if (x === Number.NEGATIVE_INFINITY) return 0;
    const at = ((log ? Math.log10(x < 0 ? -x : x) : x) - low) * factor;
    return colorAt(log && diverging ? middle + (Math.sign(x) * Math.max(at, 0)) / 2 : at);
  };
}

export function drawHeatMap(
  target: Target,
  view: HeatMapView,
  sight: Sight,
  frame: { span: Span; left: number },
  paint: (x: number) => number,
  colors: Palette,
): void {
  const { canvas, width, height, ratio } = target;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  const inner = Math.max(width - frame.left - RIGHT, 1);
  const bottom = height - AXIS;
  context.save();
  context.beginPath();
  context.rect(frame.left, 0, inner, bottom);
  context.clip();
  hatch(context, sight, { x: frame.left, width: inner }, colors);
  const image = cellsOf(view, sight, frame.span, Math.round(inner * ratio), paint);
  if (image !== null) {
    const source = document.createElement("canvas");
    source.width = image.width;
    source.height = image.height;
    source.getContext("2d")?.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(source, frame.left, sight.top, inner, sight.cells.length * sight.rowHeight);
  }
  context.restore();
  context.fillStyle = colors.muted;
  context.font = colors.font;
  context.textAlign = "center";
  context.textBaseline = "bottom";
  for (const step of stepTicks(frame.span, inner))
    context.fillText(count(step), frame.left + xOf(step, frame.span, inner), height - 2);
}

/** Draws row names and color scale into an exported picture; on the page they are HTML elements around it. */
export function drawNames(
  { canvas, height, ratio }: Target,
  { top, rowHeight }: Sight,
  names: readonly string[],
  left: number,
  shading: Shading | null,
  colors: Palette,
): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.save();
  context.beginPath();
  context.rect(0, 0, left - 4, height - AXIS);
  context.clip();
  context.fillStyle = colors.text;
  context.font = colors.font;
  context.textAlign = "left";
  context.textBaseline = "middle";
  names.forEach((name, at) => {
    const indent = name.length - name.trimStart().length;
    if (name !== "") context.fillText(name.trimStart(), 8 + 4.5 * indent, top + (at + 0.5) * rowHeight);
  });
  context.restore();
  if (shading !== null) scaleBar(context, shading, height - AXIS / 2, colors);
}

function scaleBar(context: CanvasRenderingContext2D, shading: Shading, y: number, colors: Palette): void {
  const ramp = shading.diverging ? colors.diverging : colors.ramp;
  const [least, most] = endsOf(shading);
  context.fillStyle = colors.muted;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const low = value(least, 3);
  context.fillText(low, 8, y);
  const from = 14 + context.measureText(low).width;
  context.fillText(value(most, 3), from + 70, y);
  for (let at = 0; at < 64; at++) {
    context.fillStyle = css(ramp[Math.round((at / 63) * (RAMP_STEPS - 1))] ?? 0);
    context.fillRect(from + at, y - 5, 1, 10);
  }
}

/** Hatches every row that has cells: cells without value stay hatched. */
function hatch(
  context: CanvasRenderingContext2D,
  { cells, top, rowHeight }: Sight,
  { x, width }: { x: number; width: number },
  colors: Palette,
): void {
  const height = top + cells.length * rowHeight;
  context.save();
  context.beginPath();
  cells.forEach((row, at) => {
    if (row >= 0) context.rect(x, top + at * rowHeight, width, rowHeight);
  });
  context.clip();
  context.strokeStyle = colors.muted;
  context.globalAlpha = 0.4;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -height; at < width; at += 7) {
    context.moveTo(x + at, height);
    context.lineTo(x + at + height, 0);
  }
  context.stroke();
  context.restore();
}

/** The visible rows as an image, one pixel high each and as wide as the plot. Of columns on one pixel NaN and Inf win. */
function cellsOf(
  view: HeatMapView,
  sight: Sight,
  span: Span,
  pixels: number,
  paint: (x: number) => number,
): ImageData | null {
  const columns = view.last_steps.length;
  if (columns === 0 || sight.cells.length === 0 || pixels <= 0) return null;
  const [from, to] = [new Int32Array(columns), new Int32Array(columns)];
  for (let column = 0; column < columns; column++) {
    const start = Math.round(xOf(view.left[column] ?? 0, span, pixels));
    const end = Math.round(xOf(view.right[column] ?? 0, span, pixels));
    from[column] = Math.max(start, 0);
    to[column] = Math.min(Math.max(end, start + 1), pixels);
  }
  const image = new ImageData(pixels, sight.cells.length);
  const out = new Uint32Array(image.data.buffer);
  sight.cells.forEach((row, at) => {
    if (row < 0) return;
    const base = row * columns;
    const line = at * pixels;
    for (let column = 0; column < columns; column++) {
      const x = view.cells[base + column] ?? Number.NEGATIVE_INFINITY;
      if (x === Number.NEGATIVE_INFINITY) continue;
      const color = paint(x);
      const finite = Number.isFinite(x);
      const last = line + (to[column] ?? 0);
      for (let pixel = line + (from[column] ?? 0); pixel < last; pixel++)
        if (!finite || out[pixel] === 0) out[pixel] = color;
    }
  });
  return image;
}
