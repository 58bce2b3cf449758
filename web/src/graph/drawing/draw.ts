/** A scene on a canvas. */

import { type Camera, seen } from "../camera";
import type { Look } from "../look";
import { meet } from "../rect";
import type { Scene } from "../scene";
import { drawGroups } from "./groups";
import { drawLines } from "./lines";
import { drawNodes } from "./nodes";
import { drawOutlines, type Marks } from "./outlines";
import { Pen } from "./pen";

/** Most pixels along the longer side of an exported picture: beyond them browsers draw nothing. */
const LARGEST = 8192;
const ROOM = 16;

/** What is drawn, and on what. */
export interface Picture {
  readonly canvas: HTMLCanvasElement;
  readonly scene: Scene;
  readonly look: Look;
  readonly marks: Marks;
}

/** The whole graph at a readable size, whether it is visible or not. */
export function paintAll(picture: Picture): void {
  const { x, y, width, height } = picture.scene.size;
  const [wide, high] = [width + 2 * ROOM, height + 2 * ROOM];
  const scale = Math.min(1.15, LARGEST / devicePixelRatio / Math.max(wide, high));
  paint(picture, { x: x - ROOM, y: y - ROOM, scale }, wide * scale, high * scale);
}

/** Draws what the camera sees. */
export function paint(picture: Picture, camera: Camera, width: number, height: number): void {
  const { canvas, scene, look, marks } = picture;
  const context = canvas.getContext("2d");
  if (context === null) return;
  const { scale } = camera;
  const ratio = devicePixelRatio;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.setTransform(
    ratio * scale,
    0,
    0,
    ratio * scale,
    -camera.x * scale * ratio,
    -camera.y * scale * ratio,
  );
  const view = seen(camera, width, height);
  const pen = new Pen(context, scale, look);
  const visible = scene.boxes.filter((box) => meet(box, view));
  const [open, closed] = [visible.filter((box) => box.open), visible.filter((box) => !box.open)];
  drawGroups(pen, scene, open);
  drawLines(pen, scene, view, marks.selected);
  drawNodes(pen, scene, marks.fills, closed);
  drawOutlines(pen, scene, marks, visible);
}
