/** Draws a histogram over time on a canvas. */

import { count, ticks } from "../format";
import type { HistogramView } from "../wire.gen";
import { css, type Palette } from "./colors";
import { rimmed } from "./letters";
import { drawLimits } from "./limits";
import { LEFT, placeOf, RIGHT, type Span, stepTicks, xOf } from "./scale";

const AXIS = 22;
const STRIP = 8;
const GAP = 3;
const OVERFLOW = 3;
const LETTERS = 10; // high
const BESIDE = [
  [-1, 0],
  [1, 0],
  [0, -1],
  [0, 1],
] as const;

/** Where the parts of the picture are, in pixels from the top. */
export interface Box {
  readonly width: number;
  readonly top: number;
  readonly height: number;
  /** Strip of NaN and Inf, or null where all values are finite. */
  readonly badTop: number | null;
  /** Strip of zeros on the exponent axis, which has no place for them. */
  readonly zeroTop: number | null;
}

export interface Target {
  readonly canvas: HTMLCanvasElement;
  readonly width: number;
  readonly height: number;
  readonly ratio: number;
}

export function boxOf(view: HistogramView, width: number, height: number): Box {
  const bad = [view.nan, view.pos_inf, view.neg_inf].some((column) => column.some((count) => count > 0));
  const zeros = view.axis === "exponent" && view.zeros.some((count) => count > 0);
  const top = 6 + (bad ? STRIP + GAP : 0);
  const bottom = height - AXIS - (zeros ? STRIP + GAP : 0);
  return {
    width: Math.max(width - LEFT - RIGHT, 1),
    top,
    height: Math.max(bottom - top, 1),
    badTop: bad ? 4 : null,
    zeroTop: zeros ? bottom + GAP : null,
  };
}

/** `exporting`: draws each line once, for a file. */
export function drawHistogramOverTime(
  target: Target,
  view: HistogramView,
  span: Span,
  colors: Palette,
  exporting = false,
): void {
  const { canvas, width, height, ratio } = target;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  context.font = colors.font;
  const box = boxOf(view, width, height);
  const picture = new Picture(context, view, span, colors, box, !exporting && ratio <= 1);
  picture.grid();
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, box.width, height);
  context.clip();
  picture.cells();
  picture.strips();
  picture.zeroLine();
  picture.lines();
  picture.limits();
  context.restore();
  picture.axes();
  picture.lineNames();
}

class Picture {
  private readonly bins: number;

  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly view: HistogramView,
    private readonly span: Span,
    private readonly colors: Palette,
    private readonly box: Box,
    private readonly finely: boolean,
  ) {
    this.bins = view.edges.length - 1;
  }

  private x(step: number): number {
    return LEFT + xOf(step, this.span, this.box.width);
  }

  private y(value: number): number {
    return this.box.top + this.box.height * (1 - placeOf(value, this.view.edges) / this.bins);
  }

  grid(): void {
    const { context, box, colors } = this;
    context.strokeStyle = colors.grid;
    context.lineWidth = 1;
    context.beginPath();
    for (const value of this.view.ticks) {
      const y = Math.round(this.y(value)) + 0.5;
      context.moveTo(LEFT, y);
      context.lineTo(LEFT + box.width, y);
    }
    for (const step of stepTicks(this.span, box.width)) {
      const x = Math.round(this.x(step)) + 0.5;
      context.moveTo(x, box.top);
      context.lineTo(x, box.top + box.height);
    }
    context.stroke();
  }

  /** All bins as one picture, as wide as the plot in whole pixels and one pixel high per bin. */
  cells(): void {
    const { context, view, box, bins } = this;
    const ratio = context.getTransform().a;
    const wide = Math.round(box.width * ratio);
    if (view.left.length === 0 || wide === 0) return;
    const image = new ImageData(wide, bins);
    const pixels = new Uint32Array(image.data.buffer);
    const { ramp } = this.colors;
    this.columns((column, x, width) => {
      const from = Math.max(Math.round((x - LEFT) * ratio), 0);
      const to = Math.min(Math.round((x - LEFT + width) * ratio), wide);
      for (let bin = 0; bin < bins; bin++) {
        const shade = view.shades[column * bins + bin] ?? 0;
        if (shade === 0) continue;
        const color = ramp[shade] ?? 0;
        const line = (bins - 1 - bin) * wide;
        for (let pixel = line + from; pixel < line + to; pixel++) pixels[pixel] = color;
      }
    });
    const source = document.createElement("canvas");
    source.width = wide;
    source.height = bins;
    source.getContext("2d")?.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(source, LEFT, box.top, wide / ratio, box.height);
  }

  /** Every column with its place; whole pixels, so that neighbors neither overlap nor leave a seam. */
  private columns(each: (column: number, x: number, width: number) => void): void {
    for (let column = 0; column < this.view.left.length; column++) {
      const x = Math.round(this.x(this.view.left[column] ?? 0));
      const end = Math.round(this.x(this.view.right[column] ?? 0));
      if (end >= LEFT && x <= LEFT + this.box.width) each(column, x, Math.max(end - x, 1));
    }
  }

  strips(): void {
    const { context, view, box, colors } = this;
    this.columns((column, x, width) => {
      if ((view.above[column] ?? 0) > 0) {
        context.fillStyle = colors.warn;
        context.fillRect(x, box.top, width, OVERFLOW);
      }
      if ((view.below[column] ?? 0) > 0) {
        context.fillStyle = colors.warn;
        context.fillRect(x, box.top + box.height - OVERFLOW, width, OVERFLOW);
      }
      const infinite = (view.pos_inf[column] ?? 0) + (view.neg_inf[column] ?? 0);
      const nan = view.nan[column] ?? 0;
      if (box.badTop !== null && nan + infinite > 0) {
        context.fillStyle = nan > 0 ? colors.bad : colors.infinite;
        context.fillRect(x, box.badTop, Math.max(width, 2), STRIP);
      }
      const zeros = view.zero_shades[column] ?? 0;
      if (box.zeroTop !== null && zeros > 0) {
        context.fillStyle = css(this.colors.ramp[zeros] ?? 0);
        context.fillRect(x, box.zeroTop, width, STRIP);
      }
    });
  }

  /** Below the quantiles, and only where something was recorded: it must not look like the median or continue it. */
  zeroLine(): void {
    const { context, view, colors } = this;
    const [least = 0, most = 0] = [view.edges[0], view.edges.at(-1)];
    if (least >= 0 || most <= 0 || view.left.length === 0) return;
    const y = Math.round(this.y(0)) + 0.5;
    context.beginPath();
    context.moveTo(this.x(view.left[0] ?? 0), y);
    context.lineTo(this.x(view.right.at(-1) ?? 0), y);
    for (const [color, dash] of [
      [colors.halo, []],
      [colors.line, [6, 4]],
    ] as const) {
      context.strokeStyle = color;
      context.globalAlpha = 0.6;
      context.setLineDash([...dash]);
      context.lineWidth = 1;
      context.stroke();
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
  }

  lines(): void {
    const { view } = this;
    const shares = view.shares.length;
    view.shares.forEach((share, at) => {
      const middle = share === 0.5;
      const value = (column: number) => view.quantiles[column * shares + at] ?? Number.NaN;
      this.line(value, middle ? 1.8 : 1, middle ? 1 : 0.75);
    });
    this.outermost(view.smallest);
    this.outermost(view.largest);
  }

  limits(): void {
    const { context, view, box, colors } = this;
    if (view.limits === null) return;
    const place = (value: number) => this.y(value);
    const field = { left: LEFT, ...box, upright: false, edges: view.edges, place };
    drawLimits(context, view.limits, field, colors);
  }

  /** Dotted, on the ground of the page: the smallest and the largest values. */
  private outermost(values: Float64Array): void {
    const { context, colors } = this;
    context.setLineDash([2, 3]);
    this.stroke(
      this.path((column) => values[column] ?? Number.NaN),
      1,
      0.6,
      colors.text,
    );
    context.setLineDash([]);
  }

  /** With a rim: it crosses bright and dark colors. */
  private line(value: (column: number) => number, width: number, alpha: number): void {
    const path = this.path(value);
    this.stroke(path, width + 1.6, alpha * 0.6, this.colors.halo);
    this.stroke(path, width, alpha, this.colors.line);
  }

  private stroke(path: Path2D, width: number, alpha: number, color: string): void {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = color;
    context.lineJoin = "round";
    if (this.finely && width > 1) {
      // Without a graphics card the outline of a wide line takes longer than four lines of one pixel.
      const beside = (width - 1) / 2;
      context.lineWidth = 1;
      for (const [x, y] of BESIDE) {
        context.translate(x * beside, y * beside);
        context.stroke(path);
        context.translate(-x * beside, -y * beside);
      }
    } else {
      context.lineWidth = width;
      context.stroke(path);
    }
    context.globalAlpha = 1;
  }

  private path(value: (column: number) => number): Path2D {
    const { view } = this;
    const path = new Path2D();
    let down = false;
    for (let column = 0; column < view.left.length; column++) {
      const at = value(column);
      if (Number.isNaN(at)) {
        down = false;
        continue;
      }
      const x = this.x(((view.first_steps[column] ?? 0) + (view.last_steps[column] ?? 0)) / 2);
      const y = this.y(at);
      if (down) path.lineTo(x, y);
      else path.moveTo(x, y);
      down = true;
    }
    return path;
  }

  axes(): void {
    const { context, view, box, colors } = this;
    context.fillStyle = colors.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const powersOfTwo = view.axis === "exponent";
    const texts = ticks(Array.from(view.ticks), powersOfTwo);
    // Beside "NaN, Inf" above and "0" below.
    const highest = box.badTop === null ? 0 : box.badTop + STRIP / 2 + 12;
    const lowest = box.zeroTop === null ? Number.POSITIVE_INFINITY : box.zeroTop + STRIP / 2 - 11;
    let above = Number.POSITIVE_INFINITY;
    view.ticks.forEach((value, at) => {
      const y = Math.min(Math.max(this.y(value), highest), lowest);
      if (above - y < LETTERS) return;
      context.fillText(texts[at] ?? "", LEFT - 8, y);
      above = y;
    });
    if (box.zeroTop !== null) context.fillText("0", LEFT - 8, box.zeroTop + STRIP / 2 + 1);
    if (box.badTop !== null) {
      context.fillStyle = colors.bad;
      context.fillText("NaN, Inf", LEFT - 8, box.badTop + STRIP / 2);
      context.fillStyle = colors.muted;
    }
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const bottom = box.top + box.height + AXIS + (box.zeroTop === null ? 0 : STRIP + GAP);
    for (const step of stepTicks(this.span, box.width)) {
      context.fillText(count(step), this.x(step), bottom - 2);
    }
  }

  /** Names of the lines at their right ends; the less important one of two that would overlap is left out, quartiles both. */
  lineNames(): void {
    const { context, view, box, colors } = this;
    const last = view.left.length - 1;
    if (last < 0) return;
    const shares = view.shares.length;
    const named = view.shares.map((share, at) => ({
      text: `${Math.round(share * 100)} %`,
      value: view.quantiles[last * shares + at] ?? Number.NaN,
      rank: Math.abs(share - 0.5) < 0.01 ? 0 : share < 0.1 || share > 0.9 ? 1 : 3,
    }));
    // Beyond the axis a line runs along its edge: the arrow says so.
    const [least = 0, most = 0] = [view.edges[0], view.edges.at(-1)];
    const [smallest, largest] = [view.smallest[last] ?? Number.NaN, view.largest[last] ?? Number.NaN];
    named.push({ text: largest > most ? "max ↑" : "max", value: largest, rank: 2 });
    named.push({ text: smallest < least ? "min ↓" : "min", value: smallest, rank: 2 });
    const labeled: number[] = [];
    const yOf = (value: number) => Math.min(Math.max(this.y(value), box.top + 5), box.top + box.height - 5);
    const isFree = (value: number) =>
      !Number.isNaN(value) && labeled.every((other) => Math.abs(other - yOf(value)) >= 12);
    const x = Math.min(this.x(view.right[last] ?? 0), LEFT + box.width) + 7;
    if (x < LEFT) return; // zoomed into what comes after it
    context.textAlign = "left";
    context.textBaseline = "middle";
    // On a rim: where a run ends early there are lines of the grid.
    const write = (text: string, y: number) => rimmed(context, text, x, y, colors);
    const ranked = [0, 1, 2].flatMap((rank) => named.filter((line) => line.rank === rank));
    for (const { text, value, rank } of ranked) {
      if (!isFree(value)) continue;
      labeled.push(yOf(value));
      context.fillStyle = rank === 0 ? colors.text : colors.muted;
      write(text, yOf(value));
    }
    const quartiles = named.filter(({ rank }) => rank === 3);
    if (quartiles.every(({ value }) => isFree(value)))
      for (const { text, value } of quartiles) write(text, yOf(value));
  }
}
