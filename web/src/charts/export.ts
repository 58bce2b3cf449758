/** Exports what is drawn: the numbers as CSV, the picture as PNG or SVG. */

import type { HeatMapView, HistogramView, NestedGraph, ScalarView } from "../wire.gen";
import { escaped, forExport, marksOf } from "./svg";

export type Cell = string | number | null | undefined;

/** Longest file name for every system. */
const LONGEST = 120;
const TITLE = 30;

/** A table as text: cells with commas, quotes or line ends are quoted, and a cell that a spreadsheet would run is text. */
export function csv(rows: readonly (readonly Cell[])[]): string {
  return `${rows.map((row) => row.map(quoted).join(",")).join("\r\n")}\r\n`;
}

function quoted(cell: Cell): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "number") return String(cell);
  const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Curves as one table: a row for each column of the screen. */
export function scalarTable(
  curves: readonly { name: string; view: ScalarView | null }[],
): readonly (readonly Cell[])[] {
  const rows: Cell[][] = [
    ["curve", "first_step", "last_step", "low", "high", "last", "not_finite", "smoothed"],
  ];
  for (const { name, view } of curves) {
    if (view === null) continue;
    view.last_steps.forEach((step, at) => {
      const numbers = [view.low, view.high, view.last, view.not_finite, view.smooth].map(
        (column) => column[at],
      );
      rows.push([name, view.first_steps[at], step, ...numbers]);
    });
  }
  return rows;
}

/** A histogram over time as a table: a row for each column, a column for each bin, headed by its edges. */
export function histogramTable(tensor: string, view: HistogramView): readonly (readonly Cell[])[] {
  const bins = view.edges.length - 1;
  const edges = Array.from({ length: bins }, (_, bin) => `from ${view.edges[bin]} to ${view.edges[bin + 1]}`);
  const rows: Cell[][] = [
    ["tensor", "first_step", "last_step", "below", ...edges, "above", "zeros", "nan", "inf"],
  ];
  view.last_steps.forEach((step, at) => {
    const counts = Array.from(view.counts.subarray(at * bins, (at + 1) * bins));
    const infinite = (view.pos_inf[at] ?? 0) + (view.neg_inf[at] ?? 0);
    rows.push([
      tensor,
      view.first_steps[at],
      step,
      view.below[at],
      ...counts,
      view.above[at],
      view.zeros[at],
      view.nan[at],
      infinite,
    ]);
  });
  return rows;
}

export function exportTable(name: string, rows: readonly (readonly Cell[])[]): void {
  save(name, "csv", new Blob([csv(rows)], { type: "text/csv" }));
}

/** The picture on the background of the page, below its name. */
export function exportPng(name: string, picture: HTMLCanvasElement): void {
  forExport(picture, (draw) => {
    draw();
    copied(name, picture).toBlob((blob) => blob && save(name, "png", blob));
  });
}

function copied(name: string, picture: HTMLCanvasElement): HTMLCanvasElement {
  const ratio = devicePixelRatio;
  const whole = document.createElement("canvas");
  whole.width = picture.width;
  whole.height = picture.height + TITLE * ratio;
  const context = whole.getContext("2d");
  if (context === null) return whole;
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--panel");
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(picture, 0, TITLE * ratio);
  context.scale(ratio, ratio);
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `600 13px ${style.getPropertyValue("--sans")}`;
  context.fillText(name, 12, 20, whole.width / ratio - 24);
  return whole;
}

/** The picture as vector drawing. */
export function exportSvg(name: string, picture: HTMLCanvasElement): void {
  const marks = forExport(picture, (draw) => {
    const written = marksOf(picture, draw);
    return {
      written,
      width: picture.width / devicePixelRatio,
      height: picture.height / devicePixelRatio + TITLE,
    };
  });
  const style = getComputedStyle(document.documentElement);
  const { written, width, height } = marks;
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<rect width="100%" height="100%" fill="${style.getPropertyValue("--panel")}"/>
<text x="12" y="20" fill="${style.getPropertyValue("--text")}" style="font: 600 13px ${escaped(style.getPropertyValue("--sans"))}">${escaped(name)}</text>
<g transform="translate(0 ${TITLE})">${written}</g>
</svg>
`;
  save(name, "svg", new Blob([text], { type: "image/svg+xml" }));
}

function save(name: string, ending: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${fileName(name)}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A file name for every system; a long one is cut in the middle, because the ends distinguish names. */
export function fileName(name: string): string {
  const text = name.replace(/[^\p{L}\p{N}._-]+/gu, "_");
  const half = LONGEST / 2 - 1;
  return text.length > LONGEST ? `${text.slice(0, half)}__${text.slice(-half)}` : text;
}

/** A heat map as a table: a row for each tensor, a column for each column of the picture. */
export function heatMapTable(view: HeatMapView): readonly (readonly Cell[])[] {
  const columns = view.last_steps.length;
  const rows: Cell[][] = [["site", "port", ...Array.from(view.last_steps)]];
  view.own.forEach((row, at) => {
    if (row < 0) return;
    const cells = Array.from(view.cells.subarray(row * columns, (row + 1) * columns));
    const numbers = cells.map((x) => (x === Number.NEGATIVE_INFINITY ? null : x));
    rows.push([view.sites[at], view.ports[at], ...numbers]);
  });
  return rows;
}

/** The nodes of a graph as a table, with the numbers that color them. */
export function nodeTable(
  graph: NestedGraph,
  keys: readonly string[],
  number: string,
  numbers: ReadonlyMap<number, number>,
): readonly (readonly Cell[])[] {
  const rows = graph.names.map((name, at) => [
    keys[at],
    name,
    graph.details[at],
    graph.roles[at],
    numbers.get(at),
  ]);
  const known = rows.filter(([, name]) => name !== "");
  return [["node", "name", "detail", "role", number], ...known];
}
