import { expect, test } from "vitest";
import { fitting, rowsOf, treeOf } from "./tree";
import type { SeriesEntry } from "./wire.gen";

function series(site: string, kind = "output"): SeriesEntry {
  return {
    series: 0,
    rank: 0,
    site,
    port: "output.0",
    kind,
    mode: "train",
    context: "",
    dtype: "float32",
    phase: "forward",
    local: "",
    shape: [],
  };
}

const ENTRIES = [
  series("model.h.0.mlp"),
  series("model.h.0.mlp.weight", "weight"),
  series("model.h.1.mlp"),
  series("(model)"),
];

test("a chain without branches is one row", () => {
  const rows = rowsOf(treeOf(ENTRIES), new Set(), "");
  expect(rows.map((row) => [row.depth, row.node.label])).toEqual([
    [0, "model.h"],
    [1, "0.mlp"],
    [2, "weight"],
    [1, "1.mlp"],
    [0, "(model)"],
  ]);
});

test("a closed node hides what is below it", () => {
  expect(rowsOf(treeOf(ENTRIES), new Set(["model.h"]), "").map((row) => row.node.path)).toEqual([
    "model.h",
    "(model)",
  ]);
});

test("a search finds sites by parts of their names, by stars and by kinds", () => {
  const matches = (text: string) =>
    rowsOf(treeOf(ENTRIES), new Set(["model.h"]), text).map((row) => row.node.path);
  expect(matches("0 mlp")).toEqual(["model.h.0.mlp", "model.h.0.mlp.weight"]);
  expect(matches("h.*.mlp")).toEqual(["model.h.0.mlp", "model.h.0.mlp.weight", "model.h.1.mlp"]);
  expect(matches("weight")).toEqual(["model.h.0.mlp.weight"]);
  expect(matches("[a-z]")).toEqual([]);
});

test("chips that do not fit are left over", () => {
  expect(fitting(["in", "out", "w"], 1000)).toBe(3);
  expect(fitting(["in", "out", "w"], 60)).toBe(1);
  expect(fitting(["in"], 10)).toBe(0);
  expect(fitting([], 10)).toBe(0);
});
