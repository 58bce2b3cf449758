/** The position of a tooltip: beside the pointer, inside the picture. */

/** Along one direction: after the pointer where there is room, else before it, else at the end of the room. */
export function after(at: number, size: number, room: number, gap = 14): number {
  if (at + gap + size <= room) return at + gap;
  return at - gap - size >= 0 ? at - gap - size : Math.max(room - size, 0);
}

/** The same, before the pointer first. */
export function before(at: number, size: number, room: number, gap = 14): number {
  return at - gap - size >= 0 ? at - gap - size : after(at, size, room, gap);
}
