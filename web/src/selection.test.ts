import { expect, test } from "vitest";
import { fragment, parsed, START } from "./selection";

test("an address restores the selection it was made from", () => {
  const selection = {
    ...START,
    run: "a/b c&d=#%",
    site: "<b>h.0</b>",
    kind: "weight_grad",
    stat: "std",
    axis: "symlog" as const,
    log: true,
    step: 0,
    first: -3,
    last: 120,
  };
  expect(parsed(fragment(selection))).toEqual(selection);
});

test("a broken address gives the start", () => {
  expect(parsed("#axis=round&step=1e9&first=x&log=yes")).toEqual(START);
});
