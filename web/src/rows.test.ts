import { expect, test } from "vitest";
import { closedBelow, heatRows, labeled, namesOf, rowKey } from "./rows";
import type { HeatMapView } from "./wire.gen";

const VIEW = {
  labels: ["a", "x", "y", "b"],
  sites: ["a", "a.x", "a.y", "b"],
  ports: ["", "output.0", "output.0", "output.0"],
  depths: Float64Array.of(0, 1, 1, 0),
  inside: Float64Array.of(2, 0, 0, 0),
  own: Float64Array.of(-1, 0, 1, 2),
  whole: Float64Array.of(3, -1, -1, -1),
} as unknown as HeatMapView;

test("an open group is a heading above its rows, a closed one shows what sums them up", () => {
  const open = heatRows(VIEW, new Set(), "", "output");
  expect(open.map(({ at, cells }) => [at, cells])).toEqual([
    [0, -1],
    [1, 0],
    [2, 1],
    [3, 2],
  ]);
  const closed = heatRows(VIEW, new Set([rowKey(VIEW, 0)]), "", "output");
  expect(closed.map(({ at, cells }) => [at, cells])).toEqual([
    [0, 3],
    [3, 2],
  ]);
  expect(closedBelow(VIEW, 0)).toEqual([rowKey(VIEW, 0)]);
  expect(closedBelow(VIEW, 1)).toEqual([]);
});

test("a search lists the tensors it finds, also those in closed groups", () => {
  const rows = heatRows(VIEW, new Set([rowKey(VIEW, 0)]), "a.*", "output");
  expect(rows.map((row) => row.at)).toEqual([1, 2]);
});

test("labels that would overlap give way to those of groups", () => {
  const rows = heatRows(VIEW, new Set(), "", "output");
  expect([...labeled(rows, 12, 12, -1)]).toEqual([0, 1, 2, 3]);
  expect([...labeled(rows, 4, 12, -1)].sort()).toEqual([0, 3]);
  expect([...labeled(rows, 4, 12, 2)]).toEqual([2]);
  const [group, ...others] = rows;
  const before = [rows[3], group, ...others.slice(0, 2)].flatMap((row) => row ?? []);
  expect([...labeled(before, 4, 12, -1)]).toEqual([1]);
});

test("the last row has a label, unless that of an outermost group needs the room", () => {
  const flat = [0, 1, 2, 3].map((at) => ({ at, cells: at, group: false, open: false, depth: 0 }));
  expect([...labeled(flat, 6, 12, -1)].sort()).toEqual([0, 3]);
});

test("a row whose group has no label is named with it, and stands where that would", () => {
  const rows = heatRows(VIEW, new Set(), "", "output");
  const inner = rows.findIndex((row) => row.depth > 0);
  const label = (index: number) => VIEW.labels[rows[index]?.at ?? 0] ?? "";
  expect(namesOf(VIEW, rows, new Set([0, inner])).get(inner)).toEqual({ text: label(inner), depth: 1 });
  expect(namesOf(VIEW, rows, new Set([inner])).get(inner)).toEqual({
    text: `${label(0)}.${label(inner)}`,
    depth: 0,
  });
});
