/** Colors of the nodes of a trace: by role, or by a number. */

import { css, RAMP_STEPS } from "../charts/colors";
import type { Scene } from "../graph/scene";
import type { TraceNumbers } from "../wire.gen";

type Theme = "dark" | "light";

/** Roles differ in hue, safe for color blindness (as in `layerscope/views/draw/output.py`). */
const ROLES: Readonly<Record<Theme, Readonly<Record<string, string>>>> = {
  light: {
    input: "rgb(211 232 248)",
    output: "rgb(251 220 203)",
    constant: "rgb(253 246 207)",
    parameter: "rgb(211 239 228)",
    operation: "rgb(255 255 255)",
    module: "rgb(241 223 234)",
    section: "rgb(230 228 245)",
  },
  dark: {
    input: "rgb(18 66 100)",
    output: "rgb(96 46 18)",
    constant: "rgb(70 63 16)",
    parameter: "rgb(15 72 56)",
    operation: "rgb(38 46 57)",
    module: "rgb(74 42 64)",
    section: "rgb(48 44 84)",
  },
};

/** Numbers that can color the nodes. */
export const NUMBERS = [
  { name: "elapsed_s", text: "time", unit: "s" },
  { name: "flops", text: "FLOPs", unit: "FLOPs" },
  { name: "size_bytes", text: "memory", unit: "B" },
] as const;

export const LEGEND: readonly (readonly [role: string, text: string])[] = [
  ["input", "input"],
  ["parameter", "uses parameters"],
  ["operation", "other operation"],
  ["constant", "constant"],
  ["module", "closed module"],
  ["section", "section"],
  ["output", "output"],
];

export function roleColor(role: string, theme: Theme): string {
  return ROLES[theme][role] ?? ROLES[theme].operation ?? "";
}

export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly isLog: boolean;
}

const LOG_FROM = 100;

/** The range of the visible closed nodes: a group always has more than the nodes inside it. */
export function scaleOf(numbers: ReadonlyMap<number, number>, scene: Scene): Scale | null {
  const seen = scene.boxes.flatMap((box) => (box.open ? [] : (numbers.get(box.node) ?? [])));
  if (seen.length === 0) return null;
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  const above = Math.min(...seen.filter((x) => x > 0));
  return low >= 0 && high > LOG_FROM * above
    ? { low: above, high, isLog: true }
    : { low, high, isLog: false };
}

export function numbersOf(view: TraceNumbers | null): ReadonlyMap<number, number> {
  return new Map([...(view?.parts ?? [])].map((node, at) => [node, view?.values[at] ?? 0]));
}

export function shade(x: number, scale: Scale, ramp: Uint32Array): string {
  const place = (value: number) => (scale.isLog ? Math.log(Math.max(value, scale.low)) : value);
  const width = place(scale.high) - place(scale.low);
  const share = width > 0 ? Math.min(Math.max((place(x) - place(scale.low)) / width, 0), 1) : 0.5;
  return css(ramp[Math.round(share * (RAMP_STEPS - 1))] ?? 0);
}
