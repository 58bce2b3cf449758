/** The camera of a scene: it shows everything until the user moves it. */

import { type Camera, centring, fitted, panned, zoomed } from "./camera";
import type { Scene } from "./scene";

/** First scale: the whole graph if it is readable at `WHOLE`; else its width, between `LEAST` and `MOST`. */
const [LEAST, WHOLE, MOST] = [0.66, 0.66, 0.85];

export class Viewpoint {
  width = $state(0);
  height = $state(0);
  camera = $state.raw<Camera>({ x: 0, y: 0, scale: 1 });
  /** Whether the user moved the camera: until then it follows the size of the window. */
  #touched = false;
  /** The node that keeps its position on the screen when the scene is arranged again. */
  #anchor: { node: number; x: number; y: number } | null = null;
  #fittedFor: Scene | null = null;
  #fittedTo = -1;

  /** After a new arrangement: show everything at first; later the anchored node stays at its position. */
  place(scene: Scene, selected: number | null): void {
    if (scene.size.width === 0) return;
    if (this.#fittedTo !== scene.entered || !isAlike(this.#fittedFor, scene)) this.#touched = false;
    this.#fittedFor = scene;
    this.#fittedTo = scene.entered;
    const anchor = this.#anchor;
    this.#anchor = null;
    if (!this.#touched && anchor === null) {
      this.#fit(scene);
      if (selected !== null) this.reveal(scene, selected);
      return;
    }
    const box = anchor === null ? null : scene.box(anchor.node);
    const { scale } = this.camera;
    if (anchor !== null && box !== null)
      this.camera = { scale, x: box.x + box.width / 2 - anchor.x / scale, y: box.y - anchor.y / scale };
  }

  #fit({ size }: Scene): void {
    const whole = fitted(size, this.width, this.height);
    const across = fitted({ ...size, height: 1 }, this.width, this.height).scale;
    const wide = Math.min(Math.max(across, LEAST), MOST);
    this.camera = whole.scale >= WHOLE ? whole : fitted(size, this.width, this.height, wide);
  }

  /** Keep a node at its position on the screen while the scene around it changes. */
  hold(scene: Scene, node: number): void {
    this.#touched = true;
    const box = scene.box(node);
    const { x, y, scale } = this.camera;
    if (box !== null) this.#anchor = { node, x: (box.x + box.width / 2 - x) * scale, y: (box.y - y) * scale };
  }

  reveal(scene: Scene, node: number): void {
    const box = scene.box(node);
    if (box === null) return;
    this.camera = centring(this.camera, box.open ? { ...box, height: 24 } : box, this.width, this.height);
  }

  showAll(scene: Scene): void {
    this.#touched = true;
    this.camera = fitted(scene.size, this.width, this.height);
  }

  pan(dx: number, dy: number): void {
    this.#touched = true;
    this.camera = panned(this.camera, dx, dy);
  }

  /** Zoom around a point of the screen, by default the middle. */
  zoom(by: number, x = this.width / 2, y = this.height / 2): void {
    this.#touched = true;
    this.camera = zoomed(this.camera, by, x, y);
  }

  /** Move a point of the scene to the middle. */
  center(x: number, y: number): void {
    const { scale } = this.camera;
    this.camera = { scale, x: x - this.width / scale / 2, y: y - this.height / scale / 2 };
  }

  /** The point of the scene at a point of the screen, and the other way round. */
  below(x: number, y: number): readonly [number, number] {
    return [this.camera.x + x / this.camera.scale, this.camera.y + y / this.camera.scale];
  }

  onScreen(x: number, y: number): readonly [number, number] {
    return [(x - this.camera.x) * this.camera.scale, (y - this.camera.y) * this.camera.scale];
  }
}

/** Whether two scenes have the same node names, as for two runs of one model: then the camera stays. */
function isAlike(before: Scene | null, after: Scene): boolean {
  return (
    before === after ||
    (before?.keys.length === after.keys.length && before.keys.every((key, at) => key === after.keys[at]))
  );
}
