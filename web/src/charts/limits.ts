/** The limits of a number format, on the exponent axis. */

import { share, ticks, value } from "../format";
import type { Limits } from "../wire.gen";
import type { Palette } from "./colours";

/** Pixels that a picture needs for names of lines. */
const ROOM = 400;

interface Line {
  readonly at: number;
  readonly text: string;
}

/** Its lines, from the largest number down. */
function linesOf({ format, largest, smallest_normal, smallest }: Limits): readonly Line[] {
  const power = (x: number) => ticks([x], true)[0] ?? "";
  return [
    { at: largest, text: `${format}: largest ${value(largest, 5)}` },
    { at: smallest_normal, text: `${format}: smallest normal ${power(smallest_normal)}` },
    { at: smallest, text: `${format}: smallest ${power(smallest)}` },
  ];
}

/** What a tensor would lose in the format, in words. */
export function lossText(limits: Limits, at: number, total: number): string {
  const parts = [
    [limits.to_zero[at] ?? 0, "become 0"],
    [limits.subnormal[at] ?? 0, "subnormal"],
    [limits.too_large[at] ?? 0, "too large"],
  ] as const;
  const some = parts.filter(([number]) => number > 0);
  const told = some.map(([number, what]) => `${share(number, total)} ${what}`).join(", ");
  return `in ${limits.format} ${told || "all fit"}`;
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
  colours: Palette,
): void {
  const [least = 0, most = 0] = [field.edges[0], field.edges.at(-1)];
  context.save();
  context.font = colours.font;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  const shown = linesOf(limits)
    .map((line, index) => ({ ...line, index, place: Math.round(field.place(line.at)) + 0.5 }))
    .filter(({ at }) => at >= least && at <= most);
  for (const { place } of shown) stroke(context, field, place, colours);
  const named = field.upright ? field.width >= ROOM : field.height >= ROOM / 2;
  for (const { text, index, place } of named ? shown : []) {
    const wide = context.measureText(text).width;
    const others = shown.flatMap((other) => (other.index === index ? [] : [other.place]));
    const [x, y] = besideLine(field, place, index, wide, others);
    // A rim around the letters: a ground would look like a gap in what it lies on.
    context.strokeStyle = colours.ground;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(text, x, y);
    context.fillStyle = colours.text;
    context.fillText(text, x, y);
  }
  context.restore();
}

/** Where the name of a line begins: on the side where no other line is close, as the two smallest numbers may be. */
function besideLine(
  field: Field,
  place: number,
  index: number,
  wide: number,
  others: readonly number[],
): [x: number, y: number] {
  const far = index === 2;
  if (!field.upright) {
    const [above, below] = [place - 4, place + 12];
    const bottom = field.top + field.height;
    return [field.left + 6, (far && below < bottom) || above < field.top + 10 ? below : above];
  }
  const [before, after] = [place - 5 - wide, place + 5];
  const isFree = (from: number) =>
    from >= field.left &&
    from + wide <= field.left + field.width &&
    !others.some((other) => other > from - 4 && other < from + wide + 4);
  const y = field.top + 0.08 * field.height + 30 + 14 * index;
  // Each name has a height of its own: left of all lines there is room for every one.
  const outside = Math.min(place, ...others) - 5 - wide;
  const x = (far ? [before, after, outside] : [after, before, outside]).find(isFree);
  return [x ?? Math.max(Math.min(after, field.left + field.width - wide), field.left), y];
}

function stroke(
  context: CanvasRenderingContext2D,
  { left, top, width, height, upright }: Field,
  place: number,
  colours: Palette,
): void {
  context.beginPath();
  if (upright) {
    context.moveTo(place, top);
    context.lineTo(place, top + height);
  } else {
    context.moveTo(left, place);
    context.lineTo(left + width, place);
  }
  for (const [colour, thick] of [
    [colours.ground, 3],
    [colours.warn, 1.5],
  ] as const) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.setLineDash(colour === colours.ground ? [] : [8, 4]);
    context.stroke();
  }
  context.setLineDash([]);
}
