/** Closed nodes: their bodies, and cards behind those that stand for several. */

import type { Rect } from "../rect";
import type { Box, Scene } from "../scene";
import { type Pen, READABLE } from "./pen";
import { drawLargeWords, drawWords, type Fills } from "./words";

const BAND = 7;

export function drawNodes(pen: Pen, scene: Scene, fills: Fills, boxes: readonly Box[]): void {
  const merges = boxes.filter((box) => scene.graph.roles[box.node] === "merge");
  const solid = boxes.filter((box) => scene.graph.roles[box.node] !== "merge");
  drawStacks(pen, scene, solid);
  drawBodies(pen, scene, fills, solid);
  drawMerges(pen, merges);
  if (pen.scale >= READABLE) for (const box of solid) drawWords(pen, scene, fills, box);
  else drawLargeWords(pen, scene, fills, solid);
}

/** Cards behind a node that stands for several. */
function drawStacks(pen: Pen, scene: Scene, boxes: readonly Box[]): void {
  const { context, look } = pen;
  context.fillStyle = look.node;
  context.strokeStyle = look.nodeEdge;
  context.lineWidth = 1;
  for (const box of boxes) {
    if ((scene.graph.times[box.node] ?? 1) < 2) continue;
    for (const by of [6, 3]) {
      pen.shape({ ...box, x: box.x + by, y: box.y + by }, 5);
      context.fill();
      context.stroke();
    }
  }
}

function drawBodies(pen: Pen, scene: Scene, fills: Fills, boxes: readonly Box[]): void {
  const { context, look } = pen;
  const byColor = new Map<string, Rect[]>();
  const add = (color: string, rect: Rect) => {
    const known = byColor.get(color);
    if (known === undefined) byColor.set(color, [rect]);
    else known.push(rect);
  };
  const striped: [Box, readonly string[]][] = [];
  for (const box of boxes) {
    if (scene.isIoNode(box.node)) add(look.port, box);
    else {
      const colors = fills(box.node);
      const only = colors[0];
      if (colors.length > 1) striped.push([box, colors]);
      add(
        colors.length === 1 && only !== undefined
          ? only
          : scene.graph.roles[box.node] === "tensor"
            ? look.tensor
            : look.node,
        box,
      );
    }
  }
  context.strokeStyle = look.nodeEdge;
  context.lineWidth = Math.max(1.1, 0.6 / pen.scale);
  for (const [color, rects] of byColor) {
    context.beginPath();
    for (const rect of rects) pen.outline(rect, color === look.port ? rect.height / 2 : 5);
    context.fillStyle = color;
    context.fill();
    context.stroke();
  }
  for (const [box, colors] of striped) drawStripes(pen, box, colors);
}

/** The colors of the nodes that a node stands for: below its text, or over all of it where the text is too small. */
function drawStripes(pen: Pen, box: Box, colors: readonly string[]): void {
  const { context, look } = pen;
  const high = pen.scale >= READABLE ? BAND : box.height;
  context.save();
  pen.shape(box, 5);
  context.clip();
  const wide = box.width / colors.length;
  colors.forEach((color, at) => {
    context.fillStyle = color;
    context.fillRect(box.x + at * wide, box.y + box.height - high, wide + 0.5, high);
  });
  context.restore();
  context.strokeStyle = look.nodeEdge;
  pen.shape(box, 5);
  context.stroke();
}

/** Where flows meet: a circle each. */
function drawMerges(pen: Pen, boxes: readonly Box[]): void {
  const { context, look } = pen;
  context.beginPath();
  for (const box of boxes) {
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    context.moveTo(x + box.height / 2, y);
    context.arc(x, y, box.height / 2, 0, 2 * Math.PI);
  }
  context.fillStyle = look.groups[0];
  context.strokeStyle = look.line;
  context.lineWidth = 1.6;
  context.fill();
  context.stroke();
}
