/** Draws a tensor. The server says what each cell holds; this file only colors it. */

import { type Palette, packed, RAMP_STEPS } from "../charts/colors";
import { value as worded } from "../format";
import type { ValueView } from "../wire.gen";

type Rgb = readonly [number, number, number];

const GAP = 4;
const FINE = 40; // width of a cell that has room for its number
const BARS = 128;

export interface Layout {
  readonly width: number;
  readonly height: number;
  readonly across: number;
  readonly tileWidth: number;
  readonly tileHeight: number;
}

/** Where the tiles of a view are: as large as fit side by side, never wider than the room. */
export function layoutOf(view: ValueView, width: number): Layout {
  const { rows, columns } = view;
  const high = Math.min(120, width * 0.45);
  if (view.picture === "line") return { width, height: high, across: 1, tileWidth: width, tileHeight: high };
  if (view.picture === "number") return { width, height: 0, across: 1, tileWidth: 0, tileHeight: 0 };
  const shown = view.picture === "image" ? 1 : view.tiles;
  const highest = Math.max(width * 0.6, Math.min(width, 300));
  let across = 1;
  let size = 0;
  for (let count = 1; count <= shown; count++) {
    const cell = Math.min(
      (width - GAP * (count - 1)) / count / columns,
      (highest - GAP * (Math.ceil(shown / count) - 1)) / Math.ceil(shown / count) / rows,
    );
    if (cell > size) [size, across] = [cell, count];
  }
  const cell = Math.min(size, shown === 1 ? 48 : 24);
  // A long, thin tensor gets cells that are taller than wide, so that there is something to see.
  const tall = Math.max(cell, Math.min(24, 60 / rows));
  const isThin = columns > 4 * rows;
  const [tileWidth, tileHeight] = [cell * columns, (isThin && cell < 6 ? tall : cell) * rows];
  const lines = Math.ceil(shown / across);
  return {
    width: across * tileWidth + (across - 1) * GAP,
    height: lines * tileHeight + (lines - 1) * GAP,
    across,
    tileWidth,
    tileHeight,
  };
}

export function drawValue(canvas: HTMLCanvasElement, view: ValueView, layout: Layout, colors: Palette): void {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.max(Math.round(layout.width * ratio), 1);
  canvas.height = Math.max(Math.round(layout.height * ratio), 1);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  if (view.picture === "line") drawLine(context, view, layout, colors);
  else drawTiles(context, view, layout, colors);
}

function drawTiles(
  context: CanvasRenderingContext2D,
  view: ValueView,
  layout: Layout,
  colors: Palette,
): void {
  const shown = view.picture === "image" ? 1 : view.tiles;
  context.imageSmoothingEnabled = false;
  for (let tile = 0; tile < shown; tile++) {
    const [x, y] = corner(layout, tile);
    const small = pixels(view, tile, colors);
    context.drawImage(small, x, y, layout.tileWidth, layout.tileHeight);
  }
  const [wide, high] = [layout.tileWidth / view.columns, layout.tileHeight / view.rows];
  if (shown === 1 && view.picture !== "image" && wide >= FINE && high >= 14)
    numbers(context, view, wide, high, colors);
}

function corner(layout: Layout, tile: number): [number, number] {
  const [column, row] = [tile % layout.across, Math.floor(tile / layout.across)];
  return [column * (layout.tileWidth + GAP), row * (layout.tileHeight + GAP)];
}

function pixels(view: ValueView, tile: number, colors: Palette): OffscreenCanvas {
  const { rows, columns } = view;
  const image = new ImageData(columns, rows);
  const size = rows * columns;
  const paint =
    view.picture === "image" ? imagePainter(view, colors) : tensorPainter(view, colors, tile * size);
  for (let at = 0; at < size; at++) {
    const [red, green, blue] = paint(at);
    image.data.set([red, green, blue, 255], 4 * at);
  }
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d")?.putImageData(image, 0, 0);
  return small;
}

function tensorPainter(view: ValueView, colors: Palette, from: number): (at: number) => Rgb {
  const most = largestMagnitude(view);
  return (at) => colorOf(view.cells[from + at] ?? 0, most, colors);
}

/** The lowest element that is shown is black, the highest white or a full color. */
function imagePainter(view: ValueView, colors: Palette): (at: number) => Rgb {
  const size = view.rows * view.columns;
  const [low = 0, high = 1] = view.range;
  const channel = (at: number): number => (255 * ((view.cells[at] ?? 0) - low)) / (high - low || 1);
  return (at) => {
    const odd = [0, 1, 2].map((which) => view.cells[at + (view.tiles === 3 ? which : 0) * size] ?? 0);
    if (odd.some(Number.isNaN)) return unpacked(packed(colors.bad));
    if (odd.some((x) => !Number.isFinite(x))) return unpacked(packed(colors.infinite));
    return view.tiles === 3
      ? [channel(at), channel(at + size), channel(at + 2 * size)]
      : [channel(at), channel(at), channel(at)];
  };
}

/** The magnitude at both ends of the colors. */
export function largestMagnitude(view: ValueView): number {
  const [low = 0, high = 0] = view.range;
  return Math.max(Math.abs(low), Math.abs(high)) || 1;
}

export function colorOf(x: number, most: number, colors: Palette): Rgb {
  if (Number.isNaN(x)) return unpacked(packed(colors.bad));
  if (!Number.isFinite(x)) return unpacked(packed(colors.infinite));
  const share = Math.min(Math.max((x / most + 1) / 2, 0), 1);
  return unpacked(colors.diverging[Math.round(share * (RAMP_STEPS - 1))] ?? 0);
}

function unpacked(color: number): Rgb {
  return [color & 255, (color >> 8) & 255, (color >> 16) & 255];
}

function numbers(
  context: CanvasRenderingContext2D,
  view: ValueView,
  wide: number,
  high: number,
  colors: Palette,
): void {
  context.font = "10.5px ui-monospace, 'DejaVu Sans Mono', monospace";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let at = 0; at < view.rows * view.columns; at++) {
    const x = view.cells[at] ?? 0;
    const [red, green, blue] = colorOf(x, largestMagnitude(view), colors);
    context.fillStyle = 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#000000" : "#ffffff";
    const text = Number.isNaN(x) ? "NaN" : worded(x, 3);
    context.fillText(text, ((at % view.columns) + 0.5) * wide, (Math.floor(at / view.columns) + 0.5) * high);
  }
}

function drawLine(context: CanvasRenderingContext2D, view: ValueView, layout: Layout, colors: Palette): void {
  const [low = 0, high = 0] = view.range;
  const [bottom, top] = [Math.min(low, 0), Math.max(high, 0)];
  const y = (x: number) => 4 + ((layout.height - 8) * (top - x)) / (top - bottom || 1);
  const step = layout.width / view.columns;
  const isBars = view.columns <= BARS;
  for (let at = 0; at < view.columns; at++) {
    const x = view.cells[at] ?? 0;
    if (!Number.isFinite(x)) {
      context.fillStyle = Number.isNaN(x) ? colors.bad : colors.infinite;
      context.fillRect(at * step, 0, Math.max(step, 1), layout.height);
      continue;
    }
    context.fillStyle = `rgb(${colorOf(x > 0 ? largestMagnitude(view) * 0.6 : -largestMagnitude(view) * 0.6, largestMagnitude(view), colors).join(" ")})`;
    const from = y(isBars ? Math.min(view.low[at] ?? 0, 0) : (view.low[at] ?? 0));
    const to = y(isBars ? Math.max(view.high[at] ?? 0, 0) : (view.high[at] ?? 0));
    context.fillRect(
      at * step + (isBars ? step * 0.1 : 0),
      to - 0.5,
      isBars ? step * 0.8 : Math.max(step, 1),
      from - to + 1,
    );
  }
  context.fillStyle = colors.muted;
  context.fillRect(0, y(0), layout.width, 1);
}

/** What is below a point of the picture, in words; null where there is nothing. */
export function readAt(view: ValueView, layout: Layout, x: number, y: number): string | null {
  const column = Math.floor(x / (layout.tileWidth + GAP));
  const row = view.picture === "line" ? 0 : Math.floor(y / (layout.tileHeight + GAP));
  const tile = view.picture === "image" ? 0 : row * layout.across + column;
  const [left, top] = corner(layout, tile);
  const across = Math.floor(((x - left) / layout.tileWidth) * view.columns);
  const down = view.picture === "line" ? 0 : Math.floor(((y - top) / layout.tileHeight) * view.rows);
  if (across < 0 || across >= view.columns || down < 0 || down >= view.rows) return null;
  if (column >= layout.across || tile >= view.tiles) return null;
  const size = view.rows * view.columns;
  const at = down * view.columns + across;
  const lengths = view.shape.slice(-2);
  const [height, width] = [lengths.length > 1 ? (lengths[0] ?? 1) : 1, lengths.at(-1) ?? 1];
  const places = [...view.index.map(String)];
  if (view.picture === "grid") places.push(String(view.first_tile + tile));
  if (view.picture === "image") places.push(view.tiles === 1 ? "0" : `0–${view.tiles - 1}`);
  if (view.picture !== "line") places.push(span(down, view.row_step, height));
  places.push(span(across, view.column_step, width));
  const cells =
    view.picture === "image" && view.tiles === 3 ? [at, at + size, at + 2 * size] : [tile * size + at];
  const words = cells.map((cell) => {
    const cellValue = view.cells[cell] ?? 0;
    return Number.isNaN(cellValue) ? "NaN" : worded(cellValue, 5);
  });
  const isCut = view.row_step * view.column_step > 1;
  const what = !isCut ? "" : view.picture === "image" ? "mean " : "largest ";
  return `[${places.join(", ")}] ${what}${words.join(", ")}`;
}

function span(cell: number, step: number, length: number): string {
  const [first, last] = [cell * step, Math.min((cell + 1) * step, length) - 1];
  return first === last ? String(first) : `${first}–${last}`;
}

/** The tile of a grid below a point. */
export function tileAt(view: ValueView, layout: Layout, x: number, y: number): number | null {
  const column = Math.floor(x / (layout.tileWidth + GAP));
  const tile = Math.floor(y / (layout.tileHeight + GAP)) * layout.across + column;
  return column < layout.across && tile < view.tiles ? tile : null;
}
