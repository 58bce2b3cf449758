/** Numbers of parts → colours. */

import { css, type Palette, RAMP_STEPS } from "../charts/colours";
import type { PartNumbers } from "../wire.gen";

export interface Tints {
  readonly nan: string;
  readonly infinite: string;
  readonly missing: string;
}

export function tintsOf(theme: "dark" | "light"): Tints {
  return theme === "dark"
    ? { nan: "rgb(204 121 167)", infinite: "rgb(213 94 0)", missing: "rgb(50 58 68)" }
    : { nan: "rgb(204 121 167)", infinite: "rgb(230 120 20)", missing: "rgb(176 184 194)" };
}

/** The colour of each part that has a number. */
export function coloured(numbers: PartNumbers, colours: Palette, tints: Tints): Map<number, string> {
  const found = new Map<number, string>();
  numbers.parts.forEach((part, at) => {
    found.set(part, tint(numbers.values[at] ?? Number.NaN, numbers, colours, tints));
  });
  return found;
}

function tint(x: number, { low, high, logarithmic }: PartNumbers, colours: Palette, tints: Tints): string {
  if (Number.isNaN(x)) return tints.nan;
  if (!Number.isFinite(x) || low === null || high === null) return tints.infinite;
  const share =
    high === low ? 0.5 : logarithmic ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low);
  return css(colours.ramp[Math.round(Math.min(Math.max(share, 0), 1) * (RAMP_STEPS - 1))] ?? 0);
}
