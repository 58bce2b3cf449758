/** Where the camera stands: pan, zoom, fit. */

import type { Rect } from "./rect";

export interface Camera {
  /** The point of the scene at the left upper corner. */
  readonly x: number;
  readonly y: number;
  /** Pixels per unit of the scene. */
  readonly scale: number;
}

const [FARTHEST, NEAREST] = [0.02, 3];
const ROOM = 16;

/** The visible section of the scene. */
export function seen(camera: Camera, width: number, height: number): Rect {
  return { x: camera.x, y: camera.y, width: width / camera.scale, height: height / camera.scale };
}

/** Shows everything, or the top where names would be too small to read. */
export function fitted(size: Rect, width: number, height: number, smallest = 0): Camera {
  const scale = Math.min(
    Math.max(
      Math.min((width - 2 * ROOM) / size.width, (height - 2 * ROOM) / size.height),
      smallest,
      FARTHEST,
    ),
    1.15,
  );
  const [wide, high] = [width / scale, height / scale];
  return {
    x: size.x + size.width / 2 - wide / 2,
    y: size.height > high ? size.y - ROOM / scale : size.y + size.height / 2 - high / 2,
    scale,
  };
}

/** Zoomed by a factor around a point of the screen. */
export function zoomed(camera: Camera, by: number, x: number, y: number): Camera {
  const scale = Math.min(Math.max(camera.scale * by, FARTHEST), NEAREST);
  return { x: camera.x + x / camera.scale - x / scale, y: camera.y + y / camera.scale - y / scale, scale };
}

export function panned(camera: Camera, dx: number, dy: number): Camera {
  return { ...camera, x: camera.x - dx / camera.scale, y: camera.y - dy / camera.scale };
}

/** Moved so that a box is in the middle, if it is not visible. */
export function centring(camera: Camera, box: Rect, width: number, height: number): Camera {
  const { x, y, scale } = revealing(camera, box, width, height);
  return {
    scale,
    x: x === camera.x ? x : box.x + box.width / 2 - width / scale / 2,
    y: y === camera.y ? y : box.y + box.height / 2 - height / scale / 2,
  };
}

/** Moved as little as needed to make a box visible. */
export function revealing(camera: Camera, box: Rect, width: number, height: number): Camera {
  const margin = 24 / camera.scale;
  const along = (at: number, room: number, from: number, size: number): number => {
    if (size + 2 * margin > room) return from - margin;
    if (from - margin < at) return from - margin;
    if (from + size + margin > at + room) return from + size + margin - room;
    return at;
  };
  return {
    scale: camera.scale,
    x: along(camera.x, width / camera.scale, box.x, box.width),
    y: along(camera.y, height / camera.scale, box.y, box.height),
  };
}
