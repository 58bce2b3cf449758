/** Lines that go on through the borders of open boxes: each box has a piece of them. */

import type { Drawn, Line } from "./lines";
import { NOTHING } from "./order";
import type { Point } from "./place";

/** Lines by where they begin and where they end. */
interface Joints {
  readonly from: ReadonlyMap<string, readonly Line[]>;
  readonly to: ReadonlyMap<string, readonly Line[]>;
  readonly spots: ReadonlyMap<Line, readonly [start: string, end: string]>;
  /** Lines into a group whose tensor no module produced. */
  readonly unsourced: ReadonlySet<Line>;
  /** Cached lines of nodes. */
  readonly flows: Map<number, ReadonlySet<Line>>;
}

const KNOWN = new WeakMap<readonly Drawn[], Joints>();

/** The lines from and to a node, with all pieces that continue them; cached, because every frame reads them. */
export function flowsAt(drawn: readonly Drawn[], node: number): ReadonlySet<Line> {
  const joints = jointsOf(drawn);
  const known = joints.flows.get(node);
  if (known !== undefined) return known;
  const pieces = new Set<Line>();
  joints.flows.set(node, pieces);
  const follow = (line: Line, ahead: boolean): void => {
    pieces.add(line);
    const [start = "", end = ""] = joints.spots.get(line) ?? [];
    const next = ahead ? joints.from.get(end) : joints.to.get(start);
    for (const piece of next ?? []) if (!pieces.has(piece)) follow(piece, ahead);
  };
  for (const { lines } of drawn)
    for (const line of lines) {
      if (line.source === node) follow(line, true);
      if (line.target === node) follow(line, false);
    }
  return pieces;
}

/** Where the pieces of all lines meet; cached until the scene is arranged again. */
export function jointsOf(drawn: readonly Drawn[]): Joints {
  const known = KNOWN.get(drawn);
  if (known !== undefined) return known;
  const [from, to] = [new Map<string, Line[]>(), new Map<string, Line[]>()];
  const spots = new Map<Line, readonly [string, string]>();
  for (const { box, lines } of drawn) {
    const spotOf = ([x, y]: Point = [0, 0]) => `${(box.x + x).toFixed(1)} ${(box.y + y).toFixed(1)}`;
    for (const line of lines) {
      const ends = [spotOf(line.points[0]), spotOf(line.points.at(-1))] as const;
      spots.set(line, ends);
      push(from, ends[0], line);
      push(to, ends[1], line);
    }
  }
  const unsourced = new Set(
    [...spots].flatMap(([line, [start]]) => (line.source === NOTHING && !to.has(start) ? [line] : [])),
  );
  const made = { from, to, spots, unsourced, flows: new Map<number, ReadonlySet<Line>>() };
  KNOWN.set(drawn, made);
  return made;
}

function push(into: Map<string, Line[]>, key: string, line: Line): void {
  const known = into.get(key);
  if (known === undefined) into.set(key, [line]);
  else known.push(line);
}
