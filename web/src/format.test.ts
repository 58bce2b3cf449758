import { expect, test } from "vitest";
import { count, isBroken, recorded, share, tick, value } from "./format";

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

test("ticks are powers where powers are shorter", () => {
  expect(tick(2 ** -11, true)).toBe("2⁻¹¹");
  expect(tick(-0.0001, false)).toBe("−10⁻⁴");
  expect(tick(0.5, false)).toBe("0.5");
  expect(count(-1234567)).toBe("−1,234,567");
});
