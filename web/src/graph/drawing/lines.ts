/** The flows between nodes. */

import { flowsAt, jointsOf } from "../joints";
import type { Line } from "../lines";
import type { Point } from "../place";
import { meet, type Rect } from "../rect";
import type { Scene } from "../scene";
import { type Pen, READABLE } from "./pen";

const CORNER = 7;

export function drawLines(pen: Pen, scene: Scene, view: Rect, selected: number | null): void {
  const { context, look } = pen;
  const chosen: (() => void)[] = [];
  const tips: (readonly [number, number])[] = [];
  const { unsourced } = jointsOf(scene.drawn);
  const starts: (readonly [number, number])[] = [];
  const own = selected === null ? null : flowsAt(scene.drawn, selected);
  context.beginPath();
  for (const { box, lines } of scene.drawn) {
    if (!meet(box, view)) continue;
    for (const line of lines) {
      const [x, y] = line.points[0] ?? [0, 0];
      if (unsourced.has(line)) starts.push([box.x + x, box.y + y]);
      const isChosen = own?.has(line) ?? false;
      if (isChosen || line.back) {
        chosen.push(() =>
          drawSpecial(pen, box, line, isChosen ? look.accent : look.muted, tipOf(scene, line, selected)),
        );
        continue;
      }
      trace(context, box, line.points);
      const end = line.points.at(-1);
      if (end !== undefined && ends(scene, line.target)) tips.push([box.x + end[0], box.y + end[1]]);
    }
  }
  context.strokeStyle = look.line;
  context.lineWidth = Math.max(1.3, 0.8 / pen.scale);
  context.stroke();
  if (pen.scale >= READABLE) {
    context.beginPath();
    for (const [x, y] of tips) addTip(context, x, y);
    for (const [x, y] of starts) addDot(context, x, y);
    context.fillStyle = look.line;
    context.fill();
  }
  for (const draw of chosen) draw();
}

/** Whether a line that goes to a node ends there: at an open one it goes on inside. */
function ends(scene: Scene, node: number): boolean {
  return node >= 0 && scene.box(node)?.open !== true && scene.graph.roles[node] !== "merge";
}

/** Distance of the arrowhead from the end of a line, so that the ring of a selected node does not hide it; null without arrowhead. */
function tipOf(scene: Scene, { target }: Line, selected: number | null): number | null {
  if (!ends(scene, target)) return null;
  return target === selected ? 4 : 0;
}

/** A highlighted line: of the selected node, or back to an earlier node. */
function drawSpecial(pen: Pen, box: Rect, { points, back }: Line, color: string, tip: number | null): void {
  const { context } = pen;
  context.beginPath();
  trace(context, box, points);
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = Math.max(2, 1.2 / pen.scale);
  context.setLineDash(back ? [5, 3] : []);
  context.stroke();
  context.setLineDash([]);
  const end = points.at(-1);
  if (end === undefined || tip === null) return;
  context.beginPath();
  addTip(context, box.x + end[0], box.y + end[1] - tip);
  context.fill();
}

function addTip(context: CanvasRenderingContext2D, x: number, y: number): void {
  context.moveTo(x - 3.4, y - 7);
  context.lineTo(x, y);
  context.lineTo(x + 3.4, y - 7);
  context.closePath();
}

/** Marks the beginning of a line whose tensor no module produced. */
function addDot(context: CanvasRenderingContext2D, x: number, y: number): void {
  context.moveTo(x + 3, y);
  context.arc(x, y, 3, 0, 2 * Math.PI);
}

/** Straight lines with round corners, and an S wherever a line moves sideways between layers. */
function trace(context: CanvasRenderingContext2D, box: Rect, points: readonly Point[]): void {
  let [x0, y0] = points[0] ?? [0, 0];
  context.moveTo(box.x + x0, box.y + y0);
  for (let at = 1; at < points.length; at++) {
    const [x, y] = points[at] ?? [0, 0];
    const next = points[at + 1];
    const [sideways, down] = [Math.abs(x - x0) > 0.01, Math.abs(y - y0) > 0.01];
    if (sideways && down) {
      const middle = box.y + (y0 + y) / 2;
      context.bezierCurveTo(box.x + x0, middle, box.x + x, middle, box.x + x, box.y + y);
    } else if (next !== undefined && turns(x - x0, y - y0, next[0] - x, next[1] - y)) {
      context.arcTo(box.x + x, box.y + y, box.x + next[0], box.y + next[1], CORNER);
    } else context.lineTo(box.x + x, box.y + y);
    [x0, y0] = [x, y];
  }
}

function turns(dx: number, dy: number, ex: number, ey: number): boolean {
  const upright = Math.abs(dx) < 0.01 && Math.abs(ey) < 0.01;
  const level = Math.abs(dy) < 0.01 && Math.abs(ex) < 0.01;
  return upright || level;
}
