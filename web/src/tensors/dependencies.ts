/** Boxes and lines of a dependency graph. The server says where they are. */

import type { Rect } from "../graph/rect";
import type { DependencyView } from "../wire.gen";

export interface DrawnLink {
  readonly source: number;
  readonly target: number;
  readonly thin: boolean;
  /** x and y of its points. */
  readonly way: Float64Array;
}

export function boxOf(view: DependencyView, node: number): Rect {
  const [x = 0, y = 0, width = 0, height = 0] = view.boxes.subarray(4 * node, 4 * node + 4);
  return { x, y, width, height };
}

/** What some graphs fill. */
export function extentOf(views: readonly DependencyView[]): Rect {
  const boxes = views.flatMap((view) => view.names.map((_, node) => boxOf(view, node)));
  if (boxes.length === 0) return { x: 0, y: 0, width: 0, height: 0 };
  return around(boxes);
}

/** The smallest box around some. */
export function around(boxes: readonly Rect[]): Rect {
  const [x, y] = [Math.min(...boxes.map((box) => box.x)), Math.min(...boxes.map((box) => box.y))];
  const [right, bottom] = [
    Math.max(...boxes.map((box) => box.x + box.width)),
    Math.max(...boxes.map((box) => box.y + box.height)),
  ];
  return { x, y, width: right - x, height: bottom - y };
}

/** Where a node of this iteration is among the nodes; −1 if it is not. */
export function placeOf(view: DependencyView, name: string): number {
  return view.names.findIndex((other, node) => other === name && view.back[node] === 0);
}

export function linksOf(view: DependencyView): DrawnLink[] {
  let from = 0;
  return view.sources.map((source, at) => {
    const way = view.ways.subarray(from, from + 2 * (view.way_sizes[at] ?? 0));
    from += way.length;
    return { source, target: view.targets[at] ?? 0, thin: view.thin[at] ?? false, way };
  });
}

/** A line through the points: straight where two share a coordinate, else an S with level ends. */
export function pathOf(way: Float64Array): string {
  let [x, y] = [way[0] ?? 0, way[1] ?? 0];
  let path = `M${x} ${y}`;
  for (let at = 2; at < way.length; at += 2) {
    const [nextX, nextY] = [way[at] ?? 0, way[at + 1] ?? 0];
    const middle = (x + nextX) / 2;
    path +=
      Math.abs(x - nextX) < 0.5 || Math.abs(y - nextY) < 0.5
        ? `L${nextX} ${nextY}`
        : `C${middle} ${y} ${middle} ${nextY} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
  }
  return path;
}

/** The node that an arrow key leads to: a parent, a child, or the next above or below. Null for other keys, −1 for none. */
export function nextTo(view: DependencyView, at: number, key: string): number | null {
  const direction = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[key];
  if (direction === undefined) return null;
  if (at < 0) return view.names.length > 0 ? 0 : -1;
  const here = boxOf(view, at);
  const [fromX, fromY] = [here.x + here.width / 2, here.y];
  let candidates: number[];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const [mine, other] = direction < 0 ? [view.targets, view.sources] : [view.sources, view.targets];
    candidates = mine.flatMap((node, link) => (node === at ? [other[link] ?? 0] : []));
  } else
    candidates = view.names
      .map((_, node) => node)
      .filter((node) => (boxOf(view, node).y - fromY) * direction > 0.5);
  let [best, least] = [-1, Number.POSITIVE_INFINITY];
  for (const node of candidates) {
    const box = boxOf(view, node);
    const sideways = Math.abs(box.x + box.width / 2 - fromX);
    const distance = Math.abs(box.y - fromY) + (key === "ArrowUp" || key === "ArrowDown" ? 3 * sideways : 0);
    if (distance < least) [best, least] = [node, distance];
  }
  return best;
}
