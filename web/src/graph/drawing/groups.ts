/** Open groups: frames with a title around their children. */

import type { Box, Scene } from "../scene";
import { CHEVRON, type Pen, READABLE } from "./pen";

export function drawGroups(pen: Pen, scene: Scene, boxes: readonly Box[]): void {
  const { context, look } = pen;
  context.lineWidth = Math.max(1, 0.8 / pen.scale);
  for (const box of boxes) {
    context.fillStyle = look.groups[box.depth % 2 === 0 ? 0 : 1];
    context.strokeStyle = look.edge;
    pen.shape(box, 8);
    context.fill();
    context.stroke();
  }
  if (pen.scale < READABLE) return;
  for (const box of boxes) drawTitle(pen, scene, box);
}

function drawTitle(pen: Pen, scene: Scene, box: Box): void {
  const { context, look } = pen;
  const [start, room] = box.title;
  const x = box.x + start + 8;
  const y = box.y + 15;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  const isRoot = box.node === scene.entered;
  if (!isRoot) pen.chevron(x + 4, y - 4, true);
  const indent = isRoot ? 0 : CHEVRON;
  context.font = `600 11px ${look.font}`;
  context.fillStyle = look.text;
  const name = pen.fitted(scene.graph.names[box.node] ?? "", room - 14 - indent);
  context.fillText(name, x + indent, y);
  const used = context.measureText(name).width + indent;
  context.font = `10.5px ${look.font}`;
  context.fillStyle = look.muted;
  const detail = scene.graph.details[box.node] ?? "";
  if (context.measureText(detail).width < room - used - 22) context.fillText(detail, x + used + 7, y);
}
