/** Numbers of parts → colours. */

import { css, type Palette, packed, palette, RAMP_STEPS } from "../charts/colours";
import type { PartNumbers } from "../wire.gen";

export interface Tints {
  readonly nan: string;
  readonly infinite: string;
  readonly missing: string;
}

export function tintsOf(theme: "dark" | "light"): Tints {
  const { bad, infinite } = palette(theme);
  return {
    nan: css(packed(bad)),
    infinite: css(packed(infinite)),
    missing: theme === "dark" ? "rgb(50 58 68)" : "rgb(176 184 194)",
  };
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
