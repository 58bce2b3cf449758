import { expect, test } from "vitest";
import type { ScalarView } from "../wire.gen";
import { lineColumns, valueSpan } from "./lines";

const VIEW: ScalarView = {
  name: "rms",
  thinned: false,
  points: 3,
  first_steps: Float64Array.of(0, 1, 2),
  last_steps: Float64Array.of(0, 1, 2),
  low: Float64Array.of(1, Number.NaN, -2),
  high: Float64Array.of(1, Number.NaN, -2),
  last: Float64Array.of(1, Number.POSITIVE_INFINITY, -2),
  not_finite: Float64Array.of(0, 1, 0),
};

test("a value that is not finite is a gap, and so is a negative one on a logarithmic axis", () => {
  expect(lineColumns(VIEW, false)[3]).toEqual([1, null, -2]);
  expect(lineColumns(VIEW, true)[3]).toEqual([1, null, null]);
});

test("one value, or none, still has an axis", () => {
  expect(valueSpan([[0], [5], [5], [5]], false)).toEqual({ min: 4.5, max: 5.5 });
  expect(valueSpan([[0], [null], [null], [null]], true)).toEqual({ min: 0.1, max: 1 });
});
