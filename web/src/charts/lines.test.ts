import { expect, test } from "vitest";
import type { ScalarView } from "../wire.gen";
import { type Curve, lineColumns, valueSpan } from "./lines";

function curve(steps: number[], values: number[]): Curve {
  const finite = Float64Array.from(values, (x) => (Number.isFinite(x) ? x : Number.NaN));
  const view: ScalarView = {
    name: "rms",
    thinned: false,
    points: steps.length,
    first_steps: Float64Array.from(steps),
    last_steps: Float64Array.from(steps),
    low: finite,
    high: finite,
    last: Float64Array.from(values),
    not_finite: Float64Array.from(values, (x) => (Number.isFinite(x) ? 0 : 1)),
    smooth: new Float64Array(0),
  };
  return { view, color: "red" };
}

const ONE = [curve([0, 1, 2], [1, Number.POSITIVE_INFINITY, -2])];

test("a value that is not finite is a gap, and so is a negative one on a logarithmic axis", () => {
  expect(lineColumns(ONE, false)[3]).toEqual([1, null, -2]);
  expect(lineColumns(ONE, true)[3]).toEqual([1, null, null]);
});

test("curves of other steps share an axis: a step that one lacks is no gap in it", () => {
  const joined = lineColumns([...ONE, curve([1, 3], [5, 6])], false);
  expect(joined[0]).toEqual([0, 1, 2, 3]);
  expect(joined[3]).toEqual([1, null, -2, undefined]);
  expect(joined[7]).toEqual([undefined, 5, undefined, 6]);
});

test("the value axis fits the visible steps, and a line that crosses them", () => {
  const data: [number[], ...number[][]] = [
    [0, 10, 20, 30],
    [1, 2, 3, 99],
  ];
  expect(valueSpan(data, false, { min: 9, max: 11 })).toEqual({ min: 0.88, max: 3.12 });
  expect(valueSpan(data, false, { min: 12, max: 18 })).toEqual({ min: 1.94, max: 3.06 });
});

test("one value, or none, still has an axis", () => {
  expect(valueSpan([[0], [5], [5], [5]], false, { min: 0, max: 1 })).toEqual({ min: 4.5, max: 5.5 });
  expect(valueSpan([[0], [null], [null], [null]], true, { min: 0, max: 1 })).toEqual({ min: 0.1, max: 1 });
});
