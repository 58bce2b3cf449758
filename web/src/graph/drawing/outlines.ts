/** Outlines around nodes: selected, under the pointer, pinned in a panel, or with a finding. */

import type { Rect } from "../rect";
import type { Box, Scene } from "../scene";
import type { Pen } from "./pen";
import type { Fills } from "./words";

/** The marks of nodes. */
export interface Marks {
  readonly fills: Fills;
  readonly selected: number | null;
  readonly hovered: number | null;
  /** Outlines, such as those of nodes that have a panel. */
  readonly outlined: ReadonlyMap<number, string>;
  /** Nodes with a finding. */
  readonly alarmed: ReadonlySet<number>;
}

export function drawOutlines(pen: Pen, scene: Scene, marks: Marks, boxes: readonly Box[]): void {
  const { look } = pen;
  const thick = Math.max(2.2, 1.6 / pen.scale);
  for (const box of boxes) {
    const color = marks.outlined.get(box.node);
    const radius = box.open ? 8 : scene.isIoNode(box.node) ? box.height / 2 : 5;
    if (color !== undefined) drawRing(pen, grown(box, 2), radius, color, thick * 1.4);
    // On a rim: the box may have the color of the ring.
    if (box.node === marks.selected) {
      drawRing(pen, grown(box, 1), radius, look.ground, thick + 2);
      drawRing(pen, grown(box, 1.6), radius, look.accent, thick);
    } else if (box.node === marks.hovered) drawRing(pen, box, radius, look.text, thick / 2);
    if (marks.alarmed.has(box.node)) drawAlarm(pen, box);
  }
}

function drawRing(pen: Pen, box: Rect, radius: number, color: string, thick: number): void {
  const { context } = pen;
  pen.shape(box, radius);
  context.strokeStyle = color;
  context.lineWidth = thick;
  context.stroke();
}

function grown({ x, y, width, height }: Rect, by: number): Rect {
  return { x: x - by, y: y - by, width: width + 2 * by, height: height + 2 * by };
}

/** A warning sign at the upper right corner: there is a finding for this node or a node inside it. */
function drawAlarm(pen: Pen, box: Rect): void {
  const { context, look } = pen;
  const r = Math.max(8, 6 / pen.scale);
  const [x, y] = [box.x + box.width - 3, box.y + 2 - r * 0.75];
  context.beginPath();
  context.moveTo(x, y - r);
  context.lineTo(x + r, y + r * 0.75);
  context.lineTo(x - r, y + r * 0.75);
  context.closePath();
  context.fillStyle = look.warn; // the red is that of NaN
  context.strokeStyle = look.ground;
  context.lineWidth = 1.2;
  context.fill();
  context.stroke();
  context.fillStyle = look.ground;
  context.fillRect(x - r * 0.11, y - r * 0.4, r * 0.22, r * 0.6);
  context.fillRect(x - r * 0.11, y + r * 0.34, r * 0.22, r * 0.22);
}
