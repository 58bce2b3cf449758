/** Drawing primitives of a graph: shapes, signs and text, at one scale and in one theme. */

import type { Look } from "../look";
import type { Rect } from "../rect";

/** Scales from which on names can be read, and details below them. */
export const [READABLE, DETAILED] = [0.42, 0.62];
/** Room of the sign that opens and closes a group. */
export const CHEVRON = 15;

export class Pen {
  constructor(
    readonly context: CanvasRenderingContext2D,
    readonly scale: number,
    readonly look: Look,
  ) {}

  shape(rect: Rect, radius: number): void {
    this.context.beginPath();
    this.outline(rect, radius);
  }

  outline(rect: Rect, radius: number): void {
    // Round corners that cannot be seen cost the most where there are the most boxes.
    if (this.scale < 0.3) this.context.rect(rect.x, rect.y, rect.width, rect.height);
    else this.context.roundRect(rect.x, rect.y, rect.width, rect.height, radius);
  }

  chevron(x: number, y: number, open: boolean, ink = this.look.muted): void {
    const { context } = this;
    context.beginPath();
    if (open) {
      context.moveTo(x - 3.5, y - 1.8);
      context.lineTo(x, y + 1.8);
      context.lineTo(x + 3.5, y - 1.8);
    } else {
      context.moveTo(x - 1.8, y - 3.5);
      context.lineTo(x + 1.8, y);
      context.lineTo(x - 1.8, y + 3.5);
    }
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.stroke();
  }

  /** The text, or its beginning and end where it is too long: the end of a path matters more than its middle. */
  fitted(text: string, room: number): string {
    const { context } = this;
    const whole = context.measureText(text).width;
    if (whole <= room) return text;
    let kept = Math.min(text.length - 1, Math.floor((text.length * room) / whole));
    for (; kept > 1; kept--) {
      const short = `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
      if (context.measureText(short).width <= room) return short;
    }
    return "";
  }
}
