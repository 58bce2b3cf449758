import { expect, test } from "vitest";
import golden from "../../tests/golden/text.json?raw";
import { count, isBroken, problemsOf, quantity, recorded, shapeText, share, ticks, value } from "./format";

test.each([
  [0, "0"],
  [0.25, "0.25"],
  [-1.23456, "−1.235"],
  [100, "100"],
  [12345.6, "12346"],
  [1.5e-7, "1.5e−7"],
  [3e38, "3e38"],
  [Number.NaN, "–"],
  [Number.NEGATIVE_INFINITY, "−∞"],
])("the value %d is written %s", (x, text) => {
  expect(value(x)).toBe(text);
});

test.each([
  [Number.NaN, "NaN", true],
  [Number.POSITIVE_INFINITY, "∞", true],
  [0.5, "0.5", false],
  [undefined, "–", false],
])("the recorded value %d is written %s", (x, text, broken) => {
  expect(recorded(x)).toBe(text);
  expect(isBroken(x)).toBe(broken);
});

test("something is never shown as nothing", () => {
  expect(share(1, 1_000_000)).toBe("<0.01 %");
  expect(share(0, 10)).toBe("0 %");
  expect(share(10, 10)).toBe("100 %");
});

test("ticks are written as all numbers are", () => {
  expect(ticks([2 ** -11], true)).toEqual(["2⁻¹¹"]);
  expect(ticks([-0.0001, 0, 1])).toEqual(["−1e−4", "0", "1"]);
  expect(ticks([1e-4, 0.01, 1, 100, 1e4])).toEqual(["1e−4", "1e−2", "1", "100", "1e4"]);
  expect(ticks([1e8, 4e8])).toEqual(["1e8", "4e8"]);
  expect(ticks([1e5, 2e5, 0.5])).toEqual(["1e5", "2e5", "0.5"]);
  expect(count(-1234567)).toBe("−1,234,567");
});

test("a quantity has the unit that suits it", () => {
  expect([3.2e-5, 0.00419, 2].map((x) => quantity(x, "s"))).toEqual(["32 µs", "4.19 ms", "2 s"]);
  expect([0, 512, 1500, 4.2e6].map((x) => quantity(x, "B"))).toEqual(["0 B", "512 B", "1.5 kB", "4.2 MB"]);
  expect([12, 4.2e6].map((x) => quantity(x, "FLOPs"))).toEqual(["12 FLOPs", "4.2 MFLOPs"]);
});

test("numbers and quantities are written as Python writes them", () => {
  const { numbers, quantities, shapes } = JSON.parse(golden) as {
    numbers: [number, number, string][];
    quantities: [number, string, string][];
    shapes: [number[], string][];
  };
  for (const [x, digits, text] of numbers) expect(value(x, digits)).toBe(text);
  for (const [x, unit, text] of quantities) expect(quantity(x, unit)).toBe(text);
  for (const [shape, text] of shapes) expect(shapeText(shape)).toBe(text);
});

test("ticks of one axis are written alike", () => {
  expect(ticks([0, 50000, 100000, 150000])).toEqual(["0", "5e4", "1e5", "1.5e5"]);
  expect(ticks([0, 0.0005, 0.001])).toEqual(["0", "5e−4", "1e−3"]);
  expect(ticks([0, 5000, 50000])).toEqual(["0", "5000", "50000"]);
});

test("a run that was not checked is not called sound", () => {
  const counts = { errors: 0, warnings: 0, notes: 0, checked: 12 };
  expect(problemsOf(counts)?.text).toBe("✔");
  expect(problemsOf({ ...counts, checked: 0 })?.text).toBe("–");
  expect(problemsOf({ ...counts, errors: 2, notes: 1 })).toMatchObject({
    text: "3",
    description: "2 errors, 1 note",
  });
  expect(problemsOf(null)).toBeNull();
});
