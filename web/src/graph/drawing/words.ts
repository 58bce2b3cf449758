/** The text in closed nodes: name, detail, number of repeats. */

import type { Box, Scene } from "../scene";
import { inkOn } from "./ink";
import { CHEVRON, DETAILED, type Pen } from "./pen";

/** Fill of a closed node: one color, or several side by side for a node that stands for others. */
export type Fills = (node: number) => readonly string[];

export function drawWords(pen: Pen, scene: Scene, fillsOf: Fills, box: Box): void {
  const { context, look } = pen;
  const ioNode = scene.ioNode(box.node);
  const [name, detail] =
    ioNode === null
      ? [scene.graph.names[box.node] ?? "", scene.graph.details[box.node] ?? ""]
      : [ioNode.port.name, ioNode.port.shape];
  const fills = fillsOf(box.node);
  const [fill] = fills;
  const ink = ioNode === null && fill !== undefined && fills.length === 1 ? inkOn(fill) : null;
  const times = scene.graph.times[box.node] ?? 1;
  const isGroup = scene.isGroup(box.node);
  const center = box.x + box.width / 2;
  const badge = times > 1 ? 26 : 0;
  const room = box.width - 12 - (isGroup ? CHEVRON : 0) - badge;
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  context.font = `${ioNode === null ? 600 : 500} ${ioNode === null ? 12 : 11}px ${look.font}`;
  context.fillStyle = ink ?? look.text;
  const shift = (isGroup ? CHEVRON : -0) / 2 - badge / 2;
  const detailed = detail !== "" && pen.scale >= DETAILED;
  const first = detailed ? box.y + box.height / 2 - 3 : box.y + box.height / 2 + 4;
  context.fillText(pen.fitted(name, room), center + (isGroup || badge ? shift : 0), first);
  if (times > 1) {
    context.textAlign = "right";
    context.font = `700 12px ${look.font}`;
    context.fillText(`×${times}`, box.x + box.width - 7, first);
    context.textAlign = "center";
  }
  if (isGroup) pen.chevron(box.x + 11, first - 4, false, ink ?? look.muted);
  if (!detailed) return;
  context.font = `10.5px ${look.font}`;
  context.fillStyle = ink ?? look.muted;
  const lower = fills.length > 1 ? 9 : 12; // above the colors of what it stands for
  context.fillText(pen.fitted(detail, box.width - 10), center, box.y + box.height / 2 + lower);
}

/** At small scales only the names of large boxes are drawn. */
export function drawLargeWords(pen: Pen, scene: Scene, fillsOf: Fills, boxes: readonly Box[]): void {
  if (pen.scale < 0.22 || boxes.length > 600) return;
  const { context, look } = pen;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `600 18px ${look.font}`;
  for (const box of boxes) {
    const fills = fillsOf(box.node);
    context.fillStyle =
      fills[0] === undefined ? look.text : inkOn(fills[Math.floor(fills.length / 2)] ?? fills[0]);
    const name = scene.ioNode(box.node)?.port.name ?? scene.graph.names[box.node] ?? "";
    context.fillText(pen.fitted(name, box.width - 6), box.x + box.width / 2, box.y + box.height / 2);
  }
}
