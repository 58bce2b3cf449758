import { expect, test } from "vitest";
import { forwardsOf } from "./evaluation";

const events = [
  { step: -1, level: "evaluation", text: "4 of 4 forwards of (model)" },
  { step: 24, level: "evaluation", text: "16 of 40 forwards of (model)" },
  { step: 24, level: "evaluation", text: "9 of 9 forwards of (model) in context a/b" },
  { step: 30, level: "note", text: "16 of 50 forwards of (model)" },
  { step: 49, level: "evaluation", text: "16 of 80 forwards of generator" },
];
const series = { site: "fc", mode: "eval", context: "" };

test("a series in evaluation mode says how many forwards of the evaluation it shows were recorded", () => {
  expect(forwardsOf(events, series, 10)).toEqual({ text: "4 of 4 forwards", whole: true });
  expect(forwardsOf(events, series, 24)).toEqual({ text: "16 of 40 forwards", whole: false });
  expect(forwardsOf(events, series, 99)?.text).toBe("16 of 40 forwards");
  expect(forwardsOf(events, { ...series, context: "a/b" }, 99)?.text).toBe("9 of 9 forwards");
});

test("an evaluation belongs to the model that was evaluated", () => {
  expect(forwardsOf(events, { ...series, site: "generator.0" }, 60)?.text).toBe("16 of 80 forwards");
  expect(forwardsOf(events, { ...series, site: "generators" }, 60)?.text).toBe("16 of 40 forwards");
});

test("a series in training mode has no evaluation, nor has one before the first", () => {
  expect(forwardsOf(events, { ...series, mode: "train" }, 99)).toBeNull();
  expect(forwardsOf(events, series, -2)).toBeNull();
});
