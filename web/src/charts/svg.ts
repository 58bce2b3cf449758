/** A canvas as SVG: the drawing is repeated on a context that records every call as SVG. */

type Point = readonly [x: number, y: number];
type Style = string | CanvasGradient | CanvasPattern;

/** How to draw each canvas again; `exporting` adds what is beside the canvas on the page. */
const drawers = new WeakMap<HTMLCanvasElement, (exporting: boolean) => void>();

export function drawnBy(canvas: HTMLCanvasElement, draw: (exporting: boolean) => void): void {
  drawers.set(canvas, draw);
}

/** Draws the canvas as it is exported, for as long as `use` needs it. */
export function forExport<T>(canvas: HTMLCanvasElement, use: (draw: () => void) => T): T {
  const draw = drawers.get(canvas);
  try {
    return use(() => draw?.(true));
  } finally {
    draw?.(false);
  }
}

/** The marks of a drawing, in pixels of the page. */
export function marksOf(canvas: HTMLCanvasElement, draw: () => void): string {
  const context = canvas.getContext("2d");
  if (context === null) return "";
  const writing = new Writing(context);
  const Before = window.Path2D;
  Object.assign(context, writing.calls());
  window.Path2D = WrittenPath;
  try {
    draw();
  } finally {
    window.Path2D = Before;
    for (const name of Object.keys(writing.calls())) Reflect.deleteProperty(context, name);
  }
  return `<g transform="scale(${1 / devicePixelRatio})">${writing.text()}</g>`;
}

const PATH = ["moveTo", "lineTo", "bezierCurveTo", "arc", "arcTo", "rect", "roundRect", "closePath"] as const;

/** The outline of a canvas path as SVG path data. */
export class Outline {
  d = "";
  private at: Point = [0, 0];

  moveTo(x: number, y: number): void {
    this.add("M", x, y);
  }

  lineTo(x: number, y: number): void {
    this.add(this.d === "" ? "M" : "L", x, y);
  }

  bezierCurveTo(...points: number[]): void {
    this.add("C", ...points);
  }

  closePath(): void {
    this.d += "Z";
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.add("M", x, y);
    this.d += `h${short(width)}v${short(height)}h${short(-width)}Z`;
  }

  roundRect(
    x: number,
    y: number,
    width: number,
    height: number,
    radii: number | readonly number[] = 0,
  ): void {
    const wanted = typeof radii === "number" ? radii : (radii[0] ?? 0);
    const r = Math.min(wanted, width / 2, height / 2);
    this.add("M", x + r, y);
    const [across, down] = [width - 2 * r, height - 2 * r].map(short);
    const turn = (dx: number, dy: number) => `a${short(r)} ${short(r)} 0 0 1 ${short(dx)} ${short(dy)}`;
    this.d += `h${across}${turn(r, r)}v${down}${turn(-r, r)}h-${across}${turn(-r, -r)}v-${down}${turn(r, -r)}Z`;
  }

  arc(x: number, y: number, r: number, from: number, to: number, back = false): void {
    const place = (angle: number): Point => [x + r * Math.cos(angle), y + r * Math.sin(angle)];
    const [first, last] = [place(from), place(to)];
    this.lineTo(...first);
    const turned = back ? from - to : to - from;
    if (Math.abs(turned) >= 2 * Math.PI - 1e-6) {
      this.turn(r, place(from + Math.PI), false, !back);
      this.turn(r, first, false, !back);
    } else this.turn(r, last, (turned + 2 * Math.PI) % (2 * Math.PI) > Math.PI, !back);
  }

  /** The circle that touches both lines at a corner. */
  arcTo(x1: number, y1: number, x2: number, y2: number, r: number): void {
    const [x0, y0] = this.at;
    const [inX, inY, outX, outY] = [x0 - x1, y0 - y1, x2 - x1, y2 - y1];
    const [inward, outward] = [Math.hypot(inX, inY), Math.hypot(outX, outY)];
    const cross = inX * outY - inY * outX;
    if (inward === 0 || outward === 0 || Math.abs(cross) < 1e-9 || r === 0) {
      this.lineTo(x1, y1);
      return;
    }
    const half = Math.acos((inX * outX + inY * outY) / (inward * outward)) / 2;
    const away = r / Math.tan(half);
    this.lineTo(x1 + (inX / inward) * away, y1 + (inY / inward) * away);
    this.turn(r, [x1 + (outX / outward) * away, y1 + (outY / outward) * away], false, cross < 0);
  }

  private turn(r: number, [x, y]: Point, large: boolean, clockwise: boolean): void {
    this.d += `A${short(r)} ${short(r)} 0 ${large ? 1 : 0} ${clockwise ? 1 : 0} ${short(x)} ${short(y)}`;
    this.at = [x, y];
  }

  private add(command: string, ...numbers: number[]): void {
    this.d += command + numbers.map(short).join(" ");
    this.at = [numbers.at(-2) ?? 0, numbers.at(-1) ?? 0];
  }
}

/** A path that can be read again. */
class WrittenPath extends Path2D {
  readonly outline = new Outline();

  constructor(path?: Path2D | string) {
    super(path);
    if (path instanceof WrittenPath) this.outline.d = path.outline.d;
    for (const name of PATH) {
      const both = (...given: never[]) => {
        (Path2D.prototype[name] as (...given: never[]) => void).apply(this, given);
        (this.outline[name] as (...given: never[]) => void).apply(this.outline, given);
      };
      Object.assign(this, { [name]: both });
    }
  }
}

/** Records the calls of a canvas context as SVG. */
class Writing {
  private readonly marks: string[] = [];
  private readonly clips: string[] = [];
  private readonly clipStack: (number | null)[] = [];
  private clip: number | null = null;
  private open: number | null = null;
  private outline = new Outline();

  constructor(readonly context: CanvasRenderingContext2D) {}

  text(): string {
    const end = this.open === null ? "" : "</g>";
    return `<defs>${this.clips.join("")}</defs>${this.marks.join("")}${end}`;
  }

  /** Calls that write, then draw as before. */
  calls(): Record<string, (...given: never[]) => unknown> {
    const { context } = this;
    const original = CanvasRenderingContext2D.prototype as unknown as Record<
      string,
      (...given: unknown[]) => unknown
    >;
    const noting: Record<string, (...given: never[]) => void> = {
      beginPath: () => {
        this.outline = new Outline();
      },
      fill: (path?: Path2D) => this.mark(this.d(path), `${this.paint("fill", context.fillStyle)}`),
      stroke: (path?: Path2D) => this.mark(this.d(path), `fill="none" ${this.pen()}`),
      fillRect: (...rect: [number, number, number, number]) =>
        this.mark(rectangle(rect), this.paint("fill", context.fillStyle)),
      strokeRect: (...rect: [number, number, number, number]) =>
        this.mark(rectangle(rect), `fill="none" ${this.pen()}`),
      fillText: (text: string, x: number, y: number) =>
        this.words(text, x, y, this.paint("fill", context.fillStyle)),
      strokeText: (text: string, x: number, y: number) => this.words(text, x, y, `fill="none" ${this.pen()}`),
      drawImage: (source: CanvasImageSource, ...numbers: number[]) => this.image(source, numbers),
      clip: (path?: Path2D) => this.cut(this.d(path)),
      save: () => this.clipStack.push(this.clip),
      restore: () => {
        this.clip = this.clipStack.pop() ?? null;
      },
    };
    for (const name of PATH)
      noting[name] = (...given) =>
        (this.outline[name] as (...given: never[]) => void).apply(this.outline, given);
    const passing =
      (name: string, note: (...given: never[]) => void) =>
      (...given: never[]) => {
        note(...given);
        return original[name]?.apply(context, given);
      };
    return Object.fromEntries(Object.entries(noting).map(([name, note]) => [name, passing(name, note)]));
  }

  private d(path: Path2D | string | undefined): string {
    return path instanceof WrittenPath ? path.outline.d : this.outline.d;
  }

  private mark(d: string, style: string): void {
    if (d !== "" && !style.includes('-opacity="0"')) this.add(`<path d="${d}" ${this.place()} ${style}/>`);
  }

  private words(text: string, x: number, y: number, style: string): void {
    const { context } = this;
    const anchor = { center: "middle", right: "end", end: "end", left: "start", start: "start" }[
      context.textAlign
    ];
    const { textBaseline } = context;
    const high = context.measureText(text).fontBoundingBoxAscent;
    context.textBaseline = "alphabetic";
    const base = y + context.measureText(text).fontBoundingBoxAscent - high;
    context.textBaseline = textBaseline;
    const font = escaped(context.font);
    const where = `x="${short(x)}" y="${short(base)}" text-anchor="${anchor}" style="font: ${font}"`;
    this.add(`<text ${where} ${this.place()} ${style}>${escaped(text)}</text>`);
  }

  private image(source: CanvasImageSource, numbers: readonly number[]): void {
    if (!(source instanceof HTMLCanvasElement)) return;
    const part = numbers.length > 4 ? cropped(source, numbers) : source;
    const [x = 0, y = 0, width = source.width, height = source.height] = numbers.slice(
      numbers.length > 4 ? 4 : 0,
    );
    const size = `width="${short(width)}" height="${short(height)}"`;
    const how = this.context.imageSmoothingEnabled ? "auto" : "pixelated";
    this.add(
      `<image x="${short(x)}" y="${short(y)}" ${size} ${this.place()} preserveAspectRatio="none" ` +
        `style="image-rendering: ${how}" href="${part.toDataURL()}"/>`,
    );
  }

  private cut(d: string): void {
    const within = this.clip === null ? "" : ` clip-path="url(#c${this.clip})"`;
    this.clip = this.clips.length;
    this.clips.push(`<clipPath id="c${this.clip}"${within}><path d="${d}" ${this.place()}/></clipPath>`);
  }

  /** A clip is in the units of the whole, a mark in its own: so each has an element of its own. */
  private add(element: string): void {
    if (this.open !== this.clip) {
      if (this.open !== null) this.marks.push("</g>");
      if (this.clip !== null) this.marks.push(`<g clip-path="url(#c${this.clip})">`);
      this.open = this.clip;
    }
    this.marks.push(element);
  }

  private place(): string {
    const { a, b, c, d, e, f } = this.context.getTransform();
    return `transform="matrix(${[a, b, c, d, e, f].map(short).join(" ")})"`;
  }

  private pen(): string {
    const { context } = this;
    const dashes = context.getLineDash();
    const dashed = dashes.length > 0 ? ` stroke-dasharray="${dashes.map(short).join(" ")}"` : "";
    return (
      `${this.paint("stroke", context.strokeStyle)} stroke-width="${short(context.lineWidth)}" ` +
      `stroke-linejoin="${context.lineJoin}" stroke-linecap="${context.lineCap}"${dashed}`
    );
  }

  private paint(what: "fill" | "stroke", style: Style): string {
    const [color, alpha] = solid(typeof style === "string" ? style : "#808080");
    const opacity = alpha * this.context.globalAlpha;
    return `${what}="${color}"${opacity < 1 ? ` ${what}-opacity="${short(opacity)}"` : ""}`;
  }
}

/** A color without its transparency, as every SVG program reads it, and the transparency. */
export function solid(style: string): [color: string, alpha: number] {
  const numbers = (style.match(/-?[\d.]+(?:e-?\d+)?/g) ?? []).map(Number);
  if (style.startsWith("#") || numbers.length < 3) return [style, 1];
  const [red = 0, green = 0, blue = 0, alpha = 1] = numbers;
  const most = style.startsWith("color(") ? 255 : 1;
  return [`rgb(${[red, green, blue].map((part) => Math.round(part * most)).join(",")})`, alpha];
}

function cropped(
  source: HTMLCanvasElement,
  [x = 0, y = 0, width = 1, height = 1]: readonly number[],
): HTMLCanvasElement {
  const part = document.createElement("canvas");
  part.width = width;
  part.height = height;
  part.getContext("2d")?.drawImage(source, -x, -y);
  return part;
}

function rectangle([x, y, width, height]: [number, number, number, number]): string {
  const outline = new Outline();
  outline.rect(x, y, width, height);
  return outline.d;
}

function short(x: number): string {
  return String(Math.round(x * 1000) / 1000);
}

/** Text without markup, and without the signs that XML does not take. */
export function escaped(text: string): string {
  const signs: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  const written = [...text].filter((sign) => sign >= " " || sign === "\t");
  return written.map((sign) => signs[sign] ?? sign).join("");
}
