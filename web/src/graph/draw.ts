/** A scene on a canvas. */

import type { Box, Rect, Scene } from "./scene";

export interface Camera {
  /** The point of the scene at the left upper corner. */
  readonly x: number;
  readonly y: number;
  /** Pixels per unit of the scene. */
  readonly scale: number;
}

export interface Look {
  readonly text: string;
  readonly muted: string;
  readonly edge: string;
  readonly line: string;
  readonly accent: string;
  readonly bad: string;
  readonly node: string;
  readonly nodeEdge: string;
  readonly tensor: string;
  readonly groups: readonly [string, string];
  readonly port: string;
  readonly font: string;
}

/** What is said about parts beside their names. */
export interface Marks {
  /** Fill of a closed part: one colour, or several side by side for a part that stands for others. */
  readonly fills: (part: number) => readonly string[];
  readonly selected: number | null;
  readonly hovered: number | null;
  /** Outlines, such as those of parts that have a panel. */
  readonly outlined: ReadonlyMap<number, string>;
  /** Parts with something wrong. */
  readonly alarmed: ReadonlySet<number>;
}

const [READABLE, DETAILED] = [0.42, 0.62];
const CORNER = 7;
export const CHEVRON = 15;

export function seen(camera: Camera, width: number, height: number): Rect {
  return { x: camera.x, y: camera.y, width: width / camera.scale, height: height / camera.scale };
}

export function meet(a: Rect, b: Rect): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

export function drawScene(
  context: CanvasRenderingContext2D,
  scene: Scene,
  camera: Camera,
  size: { width: number; height: number; ratio: number },
  look: Look,
  marks: Marks,
): void {
  const { width, height, ratio } = size;
  const { scale } = camera;
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
  new Drawing(context, scene, seen(camera, width, height), scale, look, marks).run();
}

class Drawing {
  constructor(
    readonly context: CanvasRenderingContext2D,
    readonly scene: Scene,
    readonly view: Rect,
    readonly scale: number,
    readonly look: Look,
    readonly marks: Marks,
  ) {}

  run(): void {
    const visible = this.scene.boxes.filter((box) => meet(box, this.view));
    this.groups(visible.filter((box) => box.open));
    this.lines();
    this.nodes(visible.filter((box) => !box.open));
    this.outlines(visible);
  }

  groups(boxes: readonly Box[]): void {
    const { context, look } = this;
    context.lineWidth = Math.max(1, 0.8 / this.scale);
    for (const box of boxes) {
      context.fillStyle = look.groups[box.depth % 2 === 0 ? 0 : 1];
      context.strokeStyle = look.edge;
      this.shape(box, 8);
      context.fill();
      context.stroke();
    }
    if (this.scale < READABLE) return;
    for (const box of boxes) this.groupTitle(box);
  }

  groupTitle(box: Box): void {
    const { context, look, scene } = this;
    const [start, room] = box.title;
    const x = box.x + start + 8;
    const y = box.y + 15;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    const isRoot = box.part === scene.entered;
    if (!isRoot) this.chevron(x + 4, y - 4, true);
    const indent = isRoot ? 0 : CHEVRON;
    context.font = `600 11px ${look.font}`;
    context.fillStyle = look.text;
    const name = this.fitted(scene.graph.names[box.part] ?? "", room - 14 - indent);
    context.fillText(name, x + indent, y);
    const used = context.measureText(name).width + indent;
    context.font = `10.5px ${look.font}`;
    context.fillStyle = look.muted;
    const detail = scene.graph.details[box.part] ?? "";
    if (context.measureText(detail).width < room - used - 22) context.fillText(detail, x + used + 7, y);
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

  lines(): void {
    const { context, look, marks } = this;
    const chosen: (() => void)[] = [];
    const tips: (readonly [number, number])[] = [];
    context.beginPath();
    for (const { box, lines } of this.scene.drawn) {
      if (!meet(box, this.view)) continue;
      for (const line of lines) {
        const isChosen =
          marks.selected !== null && (line.source === marks.selected || line.target === marks.selected);
        if (isChosen || line.back) {
          chosen.push(() => this.special(box, line.points, isChosen ? look.accent : look.muted, line.back));
          continue;
        }
        this.path(box, line.points);
        const end = line.points.at(-1);
        if (end !== undefined && this.ends(line.target)) tips.push([box.x + end[0], box.y + end[1]]);
      }
    }
    context.strokeStyle = look.line;
    context.lineWidth = Math.max(1.3, 0.8 / this.scale);
    context.stroke();
    if (this.scale >= READABLE) {
      context.beginPath();
      for (const [x, y] of tips) this.tip(x, y);
      context.fillStyle = look.line;
      context.fill();
    }
    for (const draw of chosen) draw();
  }

  /** Whether a line that goes to a part ends there: at an open one it goes on inside. */
  ends(part: number): boolean {
    return part >= 0 && this.scene.box(part)?.open !== true && this.scene.graph.roles[part] !== "merge";
  }

  special(box: Rect, points: readonly (readonly [number, number])[], colour: string, back: boolean): void {
    const { context } = this;
    context.beginPath();
    this.path(box, points);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = Math.max(2, 1.2 / this.scale);
    context.setLineDash(back ? [5, 3] : []);
    context.stroke();
    context.setLineDash([]);
    const end = points.at(-1);
    if (end === undefined) return;
    context.beginPath();
    this.tip(box.x + end[0], box.y + end[1]);
    context.fill();
  }

  tip(x: number, y: number): void {
    this.context.moveTo(x - 3.4, y - 7);
    this.context.lineTo(x, y);
    this.context.lineTo(x + 3.4, y - 7);
    this.context.closePath();
  }

  /** Straight lines with round corners, and an S wherever a line moves sideways between layers. */
  path(box: Rect, points: readonly (readonly [number, number])[]): void {
    const { context } = this;
    let [x0, y0] = points[0] ?? [0, 0];
    context.moveTo(box.x + x0, box.y + y0);
    for (let at = 1; at < points.length; at++) {
      const [x, y] = points[at] ?? [0, 0];
      const next = points[at + 1];
      const [sideways, down] = [Math.abs(x - x0) > 0.01, Math.abs(y - y0) > 0.01];
      if (sideways && down) {
        const middle = box.y + (y0 + y) / 2;
        context.bezierCurveTo(box.x + x0, middle, box.x + x, middle, box.x + x, box.y + y);
      } else if (next !== undefined && turns(x - x0, y - y0, next[0] - x, next[1] - y)) {
        context.arcTo(box.x + x, box.y + y, box.x + next[0], box.y + next[1], CORNER);
      } else context.lineTo(box.x + x, box.y + y);
      [x0, y0] = [x, y];
    }
  }

  nodes(boxes: readonly Box[]): void {
    const merges = boxes.filter((box) => this.scene.graph.roles[box.part] === "merge");
    const solid = boxes.filter((box) => this.scene.graph.roles[box.part] !== "merge");
    this.stacks(solid);
    this.bodies(solid);
    this.merges(merges);
    if (this.scale >= READABLE) for (const box of solid) this.words(box);
    else this.largeWords(solid);
  }

  /** Cards behind a part that stands for several. */
  stacks(boxes: readonly Box[]): void {
    const { context, look, scene } = this;
    context.fillStyle = look.node;
    context.strokeStyle = look.nodeEdge;
    context.lineWidth = 1;
    for (const box of boxes) {
      if ((scene.graph.times[box.part] ?? 1) < 2) continue;
      for (const by of [6, 3]) {
        this.shape({ ...box, x: box.x + by, y: box.y + by }, 5);
        context.fill();
        context.stroke();
      }
    }
  }

  bodies(boxes: readonly Box[]): void {
    const { context, look, scene, marks } = this;
    const byColour = new Map<string, Rect[]>();
    const add = (colour: string, rect: Rect) => {
      const known = byColour.get(colour);
      if (known === undefined) byColour.set(colour, [rect]);
      else known.push(rect);
    };
    const striped: [Box, readonly string[]][] = [];
    for (const box of boxes) {
      if (scene.isPill(box.part)) add(look.port, box);
      else {
        const fills = marks.fills(box.part);
        const only = fills[0];
        if (fills.length > 1) striped.push([box, fills]);
        add(
          fills.length === 1 && only !== undefined
            ? only
            : scene.graph.roles[box.part] === "tensor"
              ? look.tensor
              : look.node,
          box,
        );
      }
    }
    context.strokeStyle = look.nodeEdge;
    context.lineWidth = Math.max(1.1, 0.6 / this.scale);
    for (const [colour, rects] of byColour) {
      context.beginPath();
      for (const rect of rects) this.outline(rect, colour === look.port ? rect.height / 2 : 5);
      context.fillStyle = colour;
      context.fill();
      context.stroke();
    }
    for (const [box, fills] of striped) this.stripes(box, fills);
  }

  stripes(box: Box, fills: readonly string[]): void {
    const { context, look } = this;
    context.save();
    this.shape(box, 5);
    context.clip();
    const wide = box.width / fills.length;
    fills.forEach((fill, at) => {
      context.fillStyle = fill;
      context.fillRect(box.x + at * wide, box.y, wide + 0.5, box.height);
    });
    context.restore();
    context.strokeStyle = look.nodeEdge;
    this.shape(box, 5);
    context.stroke();
  }

  merges(boxes: readonly Box[]): void {
    const { context, look } = this;
    context.beginPath();
    for (const box of boxes) {
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      context.moveTo(x + box.height / 2, y);
      context.arc(x, y, box.height / 2, 0, 2 * Math.PI);
    }
    context.fillStyle = look.groups[0];
    context.strokeStyle = look.line;
    context.lineWidth = 1.6;
    context.fill();
    context.stroke();
  }

  words(box: Box): void {
    const { context, look, scene, marks } = this;
    const pill = scene.pill(box.part);
    const [name, detail] =
      pill === null
        ? [scene.graph.names[box.part] ?? "", scene.graph.details[box.part] ?? ""]
        : [pill.port.name, pill.port.shape];
    const fills = marks.fills(box.part);
    const ink = pill === null && fills.length > 0 ? inkOn(fills) : null;
    const times = scene.graph.times[box.part] ?? 1;
    const isGroup = scene.isGroup(box.part);
    const centre = box.x + box.width / 2;
    const badge = times > 1 ? 26 : 0;
    const room = box.width - 12 - (isGroup ? CHEVRON : 0) - badge;
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    context.font = `${pill === null ? 600 : 500} ${pill === null ? 12 : 11}px ${look.font}`;
    context.fillStyle = ink ?? look.text;
    const halo = ink === null ? null : rimOn(fills, ink);
    const shift = (isGroup ? CHEVRON : -0) / 2 - badge / 2;
    const detailed = detail !== "" && this.scale >= DETAILED;
    const first = detailed ? box.y + box.height / 2 - 3 : box.y + box.height / 2 + 4;
    this.letters(this.fitted(name, room), centre + (isGroup || badge ? shift : 0), first, halo);
    if (times > 1) {
      context.textAlign = "right";
      context.font = `700 12px ${look.font}`;
      this.letters(`×${times}`, box.x + box.width - 7, first, halo);
      context.textAlign = "center";
    }
    if (isGroup)
      this.chevron(
        box.x + 11,
        first - 4,
        false,
        halo === null ? (ink ?? look.muted) : inkOn(fills.slice(0, 1)),
      );
    if (!detailed) return;
    context.font = `10.5px ${look.font}`;
    context.fillStyle = ink ?? look.muted;
    this.letters(this.fitted(detail, box.width - 10), centre, box.y + box.height / 2 + 12, halo);
  }

  /** Text, with a rim where it runs over several colours. */
  letters(text: string, x: number, y: number, halo: string | null): void {
    const { context } = this;
    if (halo !== null) {
      context.strokeStyle = halo;
      context.lineWidth = 2.5;
      context.lineJoin = "round";
      context.strokeText(text, x, y);
    }
    context.fillText(text, x, y);
  }

  /** Far away only the names of large boxes can be read. */
  largeWords(boxes: readonly Box[]): void {
    if (this.scale < 0.22 || boxes.length > 600) return;
    const { context, look, scene, marks } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 18px ${look.font}`;
    for (const box of boxes) {
      const fills = marks.fills(box.part);
      context.fillStyle = fills.length > 0 ? inkOn(fills) : look.text;
      const name = scene.pill(box.part)?.port.name ?? scene.graph.names[box.part] ?? "";
      context.fillText(this.fitted(name, box.width - 6), box.x + box.width / 2, box.y + box.height / 2);
    }
  }

  outlines(boxes: readonly Box[]): void {
    const { look, marks } = this;
    const thick = Math.max(2.2, 1.6 / this.scale);
    for (const box of boxes) {
      const colour = marks.outlined.get(box.part);
      const radius = box.open ? 8 : this.scene.isPill(box.part) ? box.height / 2 : 5;
      if (colour !== undefined) this.ring(box, radius, colour, thick * 1.4, 2);
      if (box.part === marks.selected) this.ring(box, radius, look.accent, thick, 0);
      else if (box.part === marks.hovered) this.ring(box, radius, look.text, thick / 2, 0);
      if (marks.alarmed.has(box.part)) this.alarm(box);
    }
  }

  ring(box: Rect, radius: number, colour: string, thick: number, away: number): void {
    const { context } = this;
    this.shape(
      { x: box.x - away, y: box.y - away, width: box.width + 2 * away, height: box.height + 2 * away },
      radius,
    );
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.stroke();
  }

  /** A triangle at the upper right corner: a finding is about this part, or about one inside it. */
  alarm(box: Rect): void {
    const { context, look } = this;
    const [x, y, r] = [box.x + box.width - 3, box.y + 1, Math.max(8, 6 / this.scale)];
    context.beginPath();
    context.moveTo(x, y - r);
    context.lineTo(x + r, y + r * 0.75);
    context.lineTo(x - r, y + r * 0.75);
    context.closePath();
    context.fillStyle = look.bad;
    context.strokeStyle = look.text; // a part that holds NaN has the same red
    context.lineWidth = 1.2;
    context.fill();
    context.stroke();
  }

  shape(rect: Rect, radius: number): void {
    this.context.beginPath();
    this.outline(rect, radius);
  }

  outline(rect: Rect, radius: number): void {
    // Round corners that cannot be seen cost the most where there are the most boxes.
    if (this.scale < 0.3) this.context.rect(rect.x, rect.y, rect.width, rect.height);
    else this.context.roundRect(rect.x, rect.y, rect.width, rect.height, radius);
  }

  /** The text, or its beginning and end: the end of a path tells more than its middle. */
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

function turns(dx: number, dy: number, ex: number, ey: number): boolean {
  const upright = Math.abs(dx) < 0.01 && Math.abs(ey) < 0.01;
  const level = Math.abs(dy) < 0.01 && Math.abs(ex) < 0.01;
  return upright || level;
}

/** The rim that letters need where some of the colours want the other ink. */
function rimOn(fills: readonly string[], ink: string): string | null {
  return fills.length < 2 ? null : (fills.map((fill) => inkOn([fill])).find((each) => each !== ink) ?? null);
}

/** Black or white, whichever reads better on the colours. */
function inkOn(fills: readonly string[]): string {
  let light = 0;
  for (const fill of fills) {
    const [red = 0, green = 0, blue = 0] = (fill.match(/[\d.]+/g) ?? []).map(Number);
    light += (0.299 * red + 0.587 * green + 0.114 * blue) / fills.length;
  }
  return light > 140 ? "#000000" : "#ffffff";
}
