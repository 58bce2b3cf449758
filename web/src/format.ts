/** Numbers, shapes and words as the page writes them. */

import type { FindingCounts } from "./wire.gen";

const MINUS = "−";
const RAISED: Record<string, string> = {
  "-": "⁻",
  "0": "⁰",
  "1": "¹",
  "2": "²",
  "3": "³",
  "4": "⁴",
  "5": "⁵",
  "6": "⁶",
  "7": "⁷",
  "8": "⁸",
  "9": "⁹",
};

function raised(exponent: number): string {
  return [...String(exponent)].map((digit) => RAISED[digit] ?? digit).join("");
}

/** Magnitudes that are written without a power of ten. */
const PLAIN: readonly [least: number, most: number] = [1e-3, 1e5];

/** A derived value with four significant digits; NaN means that there is none. */
export function value(x: number | null | undefined, digits = 4, [least, most] = PLAIN): string {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : `${MINUS}∞`;
  if (x === 0) return "0";
  const size = Math.abs(x);
  const sign = x < 0 ? MINUS : "";
  if (size >= most || size < least) {
    const [mantissa = "", exponent = "0"] = size.toExponential(digits - 2).split("e");
    return `${sign}${mantissa.replace(/\.?0+$/, "")}e${exponent.replace("+", "").replace("-", MINUS)}`;
  }
  return sign + String(size >= 10 ** digits ? Math.round(size) : Number(size.toPrecision(digits)));
}

/** A recorded value: NaN is not the same as a missing value. */
export function recorded(x: number | undefined, digits = 4): string {
  return x !== undefined && Number.isNaN(x) ? "NaN" : value(x, digits);
}

/** The statistic of a tensor, or why it has none: the tensor has NaN or Inf. */
export function statText(x: number): string {
  return Number.isNaN(x) ? "has NaN" : x === Number.POSITIVE_INFINITY ? "has Inf" : recorded(x);
}

/** Whether a value was recorded and is NaN or infinite. */
export function isBroken(x: number | undefined): boolean {
  return x !== undefined && !Number.isFinite(x);
}

/** The smallest size for each prefix, as in `layerscope/model/text.py`. */
const PREFIXES: Readonly<Record<string, readonly (readonly [number, string])[]>> = {
  s: [
    [1e-6, "µ"],
    [1e-3, "m"],
    [1, ""],
  ],
  "": [
    [1, ""],
    [1e3, "k"],
    [1e6, "M"],
    [1e9, "G"],
    [1e12, "T"],
  ],
};

/** A quantity in the unit that suits it: 32 µs, 1.5 MB. */
export function quantity(x: number, unit: string): string {
  const [first, ...larger] = PREFIXES[unit] ?? PREFIXES[""] ?? [];
  let [factor, prefix] = first ?? [1, ""];
  for (const [size, sign] of larger) if (Math.abs(x) >= size) [factor, prefix] = [size, sign];
  return `${value(x / factor, 3)} ${prefix}${unit}`;
}

/** A whole number with separators between thousands. */
export function count(x: number | null | undefined): string {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  return Math.round(x).toLocaleString("en-US").replace("-", MINUS);
}

/** The step of a number, as the whole page writes it: `@55`, or `@50–55` for several steps. */
export function stepsText(first: number, last = first): string {
  return `@${count(first)}${last > first ? `–${count(last)}` : ""}`;
}

/** A share as percentage; a small share is never shown as zero. */
export function share(part: number, whole: number): string {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return "<0.01 %";
  return `${Number(percent.toPrecision(3))} %`;
}

/** Ticks of an axis of values: powers of two on the exponent axis, else numbers that are written alike. */
export function ticks(values: readonly number[], powersOfTwo = false): string[] {
  if (powersOfTwo) return values.map((x) => `2${raised(Math.round(Math.log2(x)))}`);
  // One of them with a power of ten: then its neighbors, too.
  const powers = values.some((x) => x !== 0 && (Math.abs(x) < PLAIN[0] || Math.abs(x) >= PLAIN[1]));
  return values.map((x) => value(x, 4, powers ? [0.1, 1e3] : PLAIN));
}

const KINDS: Record<string, [short: string, long: string]> = {
  input: ["in", "input"],
  output: ["out", "output"],
  input_grad: ["∇in", "gradient of the input"],
  output_grad: ["∇out", "gradient of the output"],
  input_grad_norm: ["‖∇in‖", "norm of the input's gradient, one per sample"],
  output_grad_norm: ["‖∇out‖", "norm of the output's gradient, one per sample"],
  weight: ["w", "weight"],
  weight_grad: ["∇w", "gradient of the weight"],
  update: ["Δw", "update of the weight"],
  optimizer: ["opt", "state of the optimizer"],
  buffer: ["buf", "buffer"],
  tensor: ["t", "tensor"],
  tensor_grad: ["∇t", "gradient of the tensor"],
};

const ORDER = Object.keys(KINDS);

/** Kinds in the order in which they are always shown, each once. */
export function distinctKinds(kinds: readonly string[]): string[] {
  return [...new Set(kinds)].sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
}

export function shortKind(kind: string): string {
  return KINDS[kind]?.[0] ?? kind;
}

export function longKind(kind: string): string {
  return KINDS[kind]?.[1] ?? kind;
}

/** How many findings a run has, as a badge shows it and in words; null as long as it is not known. */
export function problemsOf(
  findings: FindingCounts | null | undefined,
): { text: string; description: string; severity: string } | null {
  if (findings === null || findings === undefined) return null;
  const { errors, warnings, notes, checked } = findings;
  if (checked === 0)
    return { text: "–", description: "not checked: too few recorded steps", severity: "unknown" };
  const parts = [
    [errors, "error"],
    [warnings, "warning"],
    [notes, "note"],
  ] as const;
  const some = parts.filter(([number]) => number > 0);
  const description = some.map(([number, name]) => `${number} ${name}${number > 1 ? "s" : ""}`);
  if (some[0] === undefined) return { text: "✔", description: "no findings", severity: "healthy" };
  return { text: `${errors + warnings + notes}`, description: description.join(", "), severity: some[0][1] };
}

/** The status of a run in words. */
export function statusText(status: string): string {
  return (
    { running: "running", finished: "finished", stopped: "stopped early", unreadable: "unreadable" }[
      status
    ] ?? status
  );
}

/** Lines of "name, tab, text" as the server writes them. */
export function factsIn(text = ""): (readonly [string, string])[] {
  return text.split("\n").flatMap((line) => {
    const [name = "", fact = ""] = line.split("\t");
    return line === "" ? [] : [[name, fact] as const];
  });
}

/** A shape, as all of layerscope writes it: `2×12×32`, or `scalar`. */
export function shapeText(shape: ArrayLike<number>): string {
  return Array.from(shape).join("×") || "scalar";
}
