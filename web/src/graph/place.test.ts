import { describe, expect, it } from "vitest";
import golden from "../../../tests/golden/placing.json?raw";
import type { GroupOrder } from "../wire.gen";
import type { Extent } from "./layoutx";
import { route, wayBack } from "./lines";
import { unpacked } from "./order";
import { cornerOf, type Frame, type Placement, type Point, place } from "./place";

type Pairs = [number, number][];

interface Case {
  name: string;
  order: GroupOrder;
  frame: Frame;
  extents: [child: number, width: number, height: number, entries: Pairs, exits: Pairs][];
  placed: {
    width: number;
    height: number;
    x: number[];
    bands: [number, number][];
    title: [number, number];
    corners: [child: number, x: number, y: number][];
    routes: [flow: number, target: number, points: Point[]][];
    backs: Point[][];
  };
}

const CASES = JSON.parse(golden) as Case[];

function placedAs(given: Case): Placement {
  const extents = new Map<number, Extent>(
    given.extents.map(([child, width, height, entries, exits]) => [
      child,
      { width, height, entries: new Map(entries), exits: new Map(exits) },
    ]),
  );
  const nothing = { width: 0, height: 0, entries: new Map(), exits: new Map() };
  return place(unpacked(given.order), (child) => extents.get(child) ?? nothing, given.frame);
}

function near(actual: readonly number[], expected: readonly number[]): void {
  expect(actual.length).toBe(expected.length);
  actual.forEach((x, at) => {
    expect(x).toBeCloseTo(expected[at] ?? Number.NaN, 4);
  });
}

describe("the page places a group where Python places it", () => {
  it.each(CASES.map((each) => [each.name, each] as const))("%s", (_name, given) => {
    const placed = placedAs(given);
    const wanted = given.placed;
    near([placed.width, placed.height, ...placed.title], [wanted.width, wanted.height, ...wanted.title]);
    near(placed.x, wanted.x);
    near(placed.bands.flat(), wanted.bands.flat());
    for (const [child, x, y] of wanted.corners) near(cornerOf(placed, child), [x, y]);
    for (const [flow, target, points] of wanted.routes)
      near(route(placed, flow, target).flat(), points.flat());
    placed.ordering.lanes.forEach((lane, at) => {
      near(wayBack(placed, lane).flat(), (wanted.backs[at] ?? []).flat());
    });
  });
});
