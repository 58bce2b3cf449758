/** The limits of a number format, on the exponent axis. */

import { share, ticks, value } from "../format";
import type { Limits } from "../wire.gen";
import type { Palette } from "./colors";
import { rimmed } from "./letters";

/** Pixels that a picture needs for names of lines. */
const ROOM = 400;

interface Line {
  readonly at: number;
  /** Its name, and shorter ones where there is little room. */
  readonly texts: readonly string[];
}

/** Its lines, from the largest number down. */
function linesOf({ format, largest, smallest_normal, smallest }: Limits): readonly Line[] {
  const power = (x: number) => ticks([x], true)[0] ?? "";
  const named = [
    [largest, "largest", value(largest, 5)],
    [smallest_normal, "smallest normal", power(smallest_normal)],
    [smallest, "smallest", power(smallest)],
  ] as const;
  return named.map(([at, name, size]) => ({
    at,
    texts: [`${format}: ${name} ${size}`, `${name} ${size}`, size],
  }));
}

/** What a tensor would lose in the format, in words. */
export function lossText(limits: Limits, at: number, total: number): string {
  const parts = [
    [limits.to_zero[at] ?? 0, "become 0"],
    [limits.subnormal[at] ?? 0, "subnormal"],
    [limits.too_large[at] ?? 0, "too large"],
  ] as const;
  const some = parts.filter(([number]) => number > 0);
  const losses = some.map(([number, what]) => `${share(number, total)} ${what}`).join(", ");
  return `in ${limits.format} ${losses || "all fit"}`;
}

/** Where a picture has its values: along its height, or along its width. */
export interface Field {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  readonly upright: boolean;
  readonly edges: Float64Array;
  readonly place: (value: number) => number;
}

/** Dashed lines with their names, as far as they lie on the axis. */
export function drawLimits(
  context: CanvasRenderingContext2D,
  limits: Limits,
  field: Field,
  colors: Palette,
): void {
  const [least = 0, most = 0] = [field.edges[0], field.edges.at(-1)];
  context.save();
  context.font = colors.font;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  const shown = linesOf(limits)
    .map((line, index) => ({ ...line, index, place: Math.round(field.place(line.at)) + 0.5 }))
    .filter(({ at }) => at >= least && at <= most);
  for (const { place } of shown) stroke(context, field, place, colors);
  const named = field.upright ? field.width >= ROOM : field.height >= ROOM / 2;
  for (const { texts, index, place } of named ? shown : []) {
    const others = shown.flatMap((other) => (other.index === index ? [] : [other.place]));
    const sized = texts.map((text) => ({ text, wide: context.measureText(text).width }));
    const label = besideLine(field, place, index, sized, others);
    if (label === null) continue;
    const [text, x, y] = label;
    context.fillStyle = colors.text;
    rimmed(context, text, x, y, colors);
  }
  context.restore();
}

/** The name of a line and where it begins: on the side where no other line is close, as the two smallest numbers may be; null without room. */
function besideLine(
  field: Field,
  place: number,
  index: number,
  names: readonly { readonly text: string; readonly wide: number }[],
  others: readonly number[],
): [text: string, x: number, y: number] | null {
  const far = index === 2;
  if (!field.upright) {
    const [above, below] = [place - 4, place + 12];
    const bottom = field.top + field.height;
    return [
      names[0]?.text ?? "",
      field.left + 6,
      (far && below < bottom) || above < field.top + 10 ? below : above,
    ];
  }
  const y = field.top + 0.08 * field.height + 30 + 14 * index;
  const right = field.left + field.width;
  for (const { text, wide } of names) {
    const [before, after] = [place - 5 - wide, place + 5];
    const isFree = (from: number) =>
      from >= field.left &&
      from + wide <= right &&
      !others.some((other) => other > from - 4 && other < from + wide + 4);
    const x = (far ? [before, after] : [after, before]).find(isFree);
    if (x !== undefined) return [text, x, y];
  }
  return null;
}

function stroke(
  context: CanvasRenderingContext2D,
  { left, top, width, height, upright }: Field,
  place: number,
  colors: Palette,
): void {
  context.beginPath();
  if (upright) {
    context.moveTo(place, top);
    context.lineTo(place, top + height);
  } else {
    context.moveTo(left, place);
    context.lineTo(left + width, place);
  }
  for (const [color, thick] of [
    [colors.ground, 3],
    [colors.text, 1.2],
  ] as const) {
    context.strokeStyle = color;
    context.lineWidth = thick;
    context.setLineDash(color === colors.ground ? [] : [8, 4]);
    context.stroke();
  }
  context.setLineDash([]);
}
