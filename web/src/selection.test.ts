import { expect, test } from "vitest";
import {
  contextAmong,
  contextsOf,
  fragment,
  parsed,
  START,
  seriesFor,
  settingName,
  tensorName,
  variantsOf,
} from "./selection";
import type { SeriesEntry } from "./wire.gen";

test("an address restores the selection it was made from", () => {
  const selection = {
    ...START,
    run: "a/b c&d=#%",
    site: "<b>h.0</b>",
    kind: "weight_grad",
    dtype: "bfloat16",
    phase: "step",
    stat: "std",
    axis: "symlog" as const,
    log: true,
    metric: "loss",
    metrics: ["accuracy/top1", "learning rate"],
    step: 0,
    first: -3,
    last: 120,
  };
  expect(parsed(fragment(selection))).toEqual(selection);
});

test("a broken address gives the start", () => {
  expect(parsed("#axis=round&step=1e9&first=x&log=yes")).toEqual(START);
});

function series(number: number, dtype: string, phase = "forward", port = "output.0"): SeriesEntry {
  return {
    series: number,
    rank: 0,
    site: "a",
    port,
    kind: "output",
    mode: "train",
    context: "",
    dtype,
    phase,
    local: "",
    shape: [],
  };
}

const VARIANTS = [
  series(0, "float32"),
  series(1, "bfloat16"),
  series(2, "float32", "step"),
  series(3, "float32", "forward", "output.1"),
];

test("of series that differ in data type and phase alone the newest is shown first", () => {
  expect(seriesFor(VARIANTS, START)?.series).toBe(2);
  expect(seriesFor(VARIANTS, { ...START, port: "output.1" })?.series).toBe(3);
  expect(variantsOf(VARIANTS, series(0, "float32")).map((entry) => entry.series)).toEqual([0, 1, 2]);
});

test("every data type and phase can be chosen, and one that a site lacks gives the newest", () => {
  for (const { series: number, dtype, phase } of VARIANTS.slice(0, 3))
    expect(seriesFor(VARIANTS, { ...START, dtype, phase })?.series).toBe(number);
  expect(seriesFor(VARIANTS, { ...START, dtype: "float16", phase: "backward" })?.series).toBe(2);
  expect(seriesFor([], START)).toBeNull();
});

test("the chosen context is shown, and one that a tensor lacks gives the first", () => {
  const inContext = (number: number, context: string) => ({ ...series(number, "float32"), context });
  const several = [inContext(0, "real"), inContext(1, "fake"), { ...inContext(2, ""), kind: "weight" }];
  expect(seriesFor(several, { ...START, context: "fake" })?.series).toBe(1);
  expect(seriesFor(several, { ...START, context: "other" })?.series).toBe(0);
  expect(seriesFor(several, { ...START, context: "fake", kind: "weight" })?.series).toBe(2);
  expect(contextAmong(contextsOf(several.slice(0, 2)), "fake")).toBe("fake");
  expect(contextAmong(contextsOf(several.slice(0, 2)), null)).toBe("real");
});

test("the address says which context of a tensor is selected", () => {
  const [real, fake] = ["real", "fake"].map((context) => ({ ...series(0, "float32"), context }));
  expect(real && tensorName(real, [])).toBe("a output real");
  expect(fake && settingName(fake)).toBe("fake");
  expect(settingName({ mode: "eval", context: "real" })).toBe("eval real");
  for (const context of ["", "a/b", null])
    expect(parsed(fragment({ ...START, context })).context).toBe(context);
});
