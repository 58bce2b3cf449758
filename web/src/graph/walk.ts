/** Walking from node to node by keys, and the node under the pointer. */

import { CHEVRON } from "./drawing/pen";
import type { Box, Scene } from "./scene";

const MOST_ROWS = 240;

/** A visible node in the tree of them. */
export interface Row {
  readonly node: number;
  readonly level: number;
}

export interface Hit {
  readonly node: number;
  /** Whether the chevron was hit. */
  readonly onChevron: boolean;
}

/** The innermost node at a point of the scene. */
export function hitAt(scene: Scene, x: number, y: number): Hit | null {
  let deepest: Box | null = null;
  for (const box of scene.boxes) {
    if (x < box.x || x > box.x + box.width || y < box.y || y > box.y + box.height) continue;
    if (deepest === null || box.depth >= deepest.depth) deepest = box;
  }
  if (deepest === null) return null;
  return { node: deepest.node, onChevron: onChevron(scene, deepest, x, y) };
}

function onChevron(scene: Scene, box: Box, x: number, y: number): boolean {
  if (!scene.isGroup(box.node) || box.node === scene.entered) return false;
  const left = box.open ? box.x + box.title[0] + 2 : box.x;
  return x >= left && x <= left + CHEVRON + 8 && y <= box.y + 24;
}

type Direction = "ArrowUp" | "ArrowDown" | "ArrowLeft" | "ArrowRight";

/** The node next to another one in a direction: near, and as straight ahead as possible. */
export function nextTo(scene: Scene, from: number, direction: Direction): number | null {
  const start = scene.box(from);
  if (start === null) return null;
  const [dx, dy] = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[
    direction
  ] as [number, number];
  const inside = new Set<number>();
  if (start.open)
    for (const box of scene.boxes) if (scene.chain(box.node).includes(from)) inside.add(box.node);
  let best: { node: number; cost: number } | null = null;
  const [x, y] = [start.x + start.width / 2, start.open ? start.y + 11 : start.y + start.height / 2];
  for (const box of scene.boxes) {
    if (box.node === from || box.node === scene.entered) continue;
    const [ox, oy] = [box.x + box.width / 2 - x, (box.open ? box.y + 11 : box.y + box.height / 2) - y];
    const ahead = ox * dx + oy * dy;
    if (ahead < 6) continue;
    const sideways = Math.abs(dx !== 0 ? oy : ox);
    const cost = ahead + 2.5 * sideways;
    if (best === null || cost < best.cost) best = { node: box.node, cost };
  }
  return best?.node ?? null;
}

/** The rows of the tree around the selected one: few enough for a screen reader. */
export function rowsNear(scene: Scene, selected: number | null): Row[] {
  const all = rowsOf(scene);
  if (all.length <= MOST_ROWS) return all;
  const at = Math.max(
    all.findIndex((row) => row.node === selected),
    0,
  );
  return all.slice(Math.max(0, at - MOST_ROWS / 2), at + MOST_ROWS / 2);
}

/** The visible nodes as rows of a tree, outer ones first, in order of execution. */
function rowsOf(scene: Scene): Row[] {
  const rows: Row[] = [];
  const base = scene.box(scene.entered)?.depth ?? 0;
  for (const box of scene.boxes) rows.push({ node: box.node, level: Math.max(box.depth - base, 0) + 1 });
  return rows;
}
