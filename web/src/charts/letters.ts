/** Words on a picture. */

import type { Palette } from "./colors";

/** Letters on a rim of the ground: whatever lies below does not run through them, and is not hidden as by a box. */
export function rimmed(
  context: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  colors: Palette,
): void {
  context.strokeStyle = colors.ground;
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}
