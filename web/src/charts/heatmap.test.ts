import { expect, test } from "vitest";
import type { Palette } from "./colors";
import { endsOf, painter, shadingOf } from "./heatmap";

const DIFFERENCES = { low: -2e4, high: 5, robust_low: -9e3, robust_high: 1, abs_low: 1e-9, abs_high: 2e4 };
const COLORS = {
  bad: "#ff0000",
  infinite: "#ff00ff",
  ramp: new Uint32Array(256),
  diverging: Uint32Array.from({ length: 256 }, (_, at) => at + 1),
} as unknown as Palette;

test("on a logarithmic scale of both signs small and large differences have different colors", () => {
  const shading = shadingOf(DIFFERENCES, true, true);
  if (shading === null) throw new Error("no scale");
  expect(endsOf(shading).map(Math.round)).toEqual([-2e4, 2e4]);
  const paint = painter(shading, COLORS);
  const [zero, below, small, large] = [0, 1e-7, 1, 2e4].map(paint);
  expect(below).toBe(zero);
  expect(small).toBeGreaterThan(zero ?? 0);
  expect(large).toBe(256);
  expect(paint(-2e4)).toBe(1);
  expect(paint(-1)).toBeLessThan(zero ?? 0);
});

test("runs that do not differ at all have a linear scale", () => {
  const none = { low: 0, high: 0, robust_low: 0, robust_high: 0, abs_low: null, abs_high: null };
  expect(shadingOf(none, true, true)).toMatchObject({ log: false, diverging: true, low: -1, high: 1 });
});
