/** Numbers of parts → colours. */

import { css, type Palette } from "../charts/colours";
import { painter, type Shading } from "../charts/matrix";
import type { PartNumbers } from "../wire.gen";

/** Of parts of which nothing was recorded. */
export const MISSING = { dark: "rgb(50 58 68)", light: "rgb(176 184 194)" } as const;

/** The colour of each part that has a number. */
export function coloured(
  numbers: PartNumbers,
  shading: Shading | null,
  colours: Palette,
): Map<number, string> {
  const paint = painter(shading, colours);
  return new Map(
    Array.from(numbers.parts, (part, at) => [part, css(paint(numbers.values[at] ?? Number.NaN))]),
  );
}
