import { expect, test } from "vitest";
import { columnAt, lastUntil, logTicks, nearest, placeOf, readBy, stepTicks } from "./scale";

test("a value stands between its edges, and at the end when it lies outside", () => {
  const edges = Float64Array.of(-10, 0, 1, 100);
  expect([-20, -5, 0, 0.5, 50.5, 1e9, Number.NaN].map((x) => placeOf(x, edges))).toEqual([
    0, 0.5, 1, 1.5, 2.5, 3, 0,
  ]);
});

test("the nearest column is found, also outside the steps", () => {
  const steps = Float64Array.of(0, 10, 20);
  expect([-5, 4, 6, 16, 99].map((step) => nearest(steps, step))).toEqual([0, 0, 1, 2, 2]);
  expect(nearest(new Float64Array(), 3)).toBe(-1);
});

test("a crosshair reads the last recorded step at or before it, and the first one before that", () => {
  const steps = Float64Array.of(5, 10, 55, 60);
  const view = { first_steps: steps, last_steps: steps };
  expect([0, 5, 9, 54, 59, 60, 99].map((step) => columnAt(view, step))).toEqual([0, 0, 0, 1, 2, 3, 3]);
  expect([0, 5, 59, 99].map((step) => readBy(view, step))).toEqual([5, 5, 55, 60]);
  const nothing = { first_steps: new Float64Array(), last_steps: new Float64Array() };
  expect(columnAt(nothing, 3)).toBe(-1);
  expect(readBy(nothing, 3)).toBe(3);
});

test("a column of several steps is read by each of them and until the next column", () => {
  const view = { first_steps: Float64Array.of(0, 2, 10), last_steps: Float64Array.of(1, 4, 12) };
  expect([0, 1, 2, 3, 4, 9, 11, 99].map((step) => columnAt(view, step))).toEqual([0, 0, 1, 1, 1, 1, 2, 2]);
  expect([1, 3, 9, 11, 99].map((step) => readBy(view, step))).toEqual([1, 3, 4, 11, 12]);
});

test("what was last until a step is found, and nothing before the first", () => {
  const steps = Float64Array.of(0, 10, 20);
  expect([-1, 0, 9, 10, 99].map((step) => lastUntil(steps, step))).toEqual([-1, 0, 0, 1, 2]);
});

test("steps are labeled by round whole numbers", () => {
  expect(stepTicks({ min: -0.5, max: 399.5 }, 900)).toEqual([0, 50, 100, 150, 200, 250, 300, 350]);
  expect(stepTicks({ min: -0.5, max: 2.5 }, 900)).toEqual([0, 1, 2]);
});

test("a logarithmic axis is labeled at powers of ten, and between them when there are few", () => {
  expect(logTicks({ min: 3e-7, max: 2e-2 }, 10)).toEqual([1e-6, 1e-5, 1e-4, 1e-3, 1e-2]);
  expect(logTicks({ min: 1e-12, max: 1 }, 5)).toEqual([1e-12, 1e-9, 1e-6, 1e-3, 1]);
  expect(logTicks({ min: 0.15, max: 1.3 }, 5)).toEqual([0.2, 0.5, 1]);
  expect(logTicks({ min: 0.38, max: 1.55 }, 4)).toEqual([0.5, 1, 1.5]);
  expect(logTicks({ min: 1.12, max: 1.29 }, 2)).toEqual([1.15, 1.2, 1.25]);
  expect(logTicks({ min: 1.15, max: 1.45 }, 5)).toEqual([1.2, 1.3, 1.4]);
  expect(logTicks({ min: 0.032, max: 0.0331 }, 5)).toEqual(
    [0.032, 0.0325, 0.033].map((x) => expect.closeTo(x, 9)),
  );
});
