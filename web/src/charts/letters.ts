/** Text on a picture. */

import type { Palette } from "./colors";

/** Text with an outline in the background color: readable above lines without hiding them behind a box. */
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
