/** Which groups are open, and where everything then is. Knows nothing of runs or traces: parts, groups, flows. */

import type { GroupOrder, NestedGraph } from "../wire.gen";
import type { Extent } from "./across";
import { type Flow, NOTHING, type Ordering, type Port, unpacked } from "./order";
import {
  cornerOf,
  extentOf,
  type Frame,
  type Outside,
  type Placement,
  type Point,
  place,
  route,
  wayBack,
} from "./place";

const FRAME = { padding: 14, titleHeight: 22 };
const PILL = { height: 22, narrowest: 56, letter: 7.2, margin: 18 };

export interface Rect {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** A part that can be seen; an open one is the box around its children. */
export interface Box extends Rect {
  readonly part: number;
  readonly open: boolean;
  readonly depth: number;
  /** Of an open box: where its title begins, from its left, and the room it has. */
  readonly title: readonly [number, number];
}

/** A flow inside one open group; its points are measured from the group's corner. */
export interface Line {
  readonly points: readonly Point[];
  readonly source: number;
  readonly target: number;
  readonly back: boolean;
}

/** A visible group with its lines. */
export interface Drawn {
  readonly box: Rect;
  readonly lines: readonly Line[];
}

/** What meets others in a merge: the output of a part, or the input of a call, which is the output of a part as well. */
export interface Branch {
  readonly inputOf: number | null;
  readonly part: number | null;
}

/** An input or output of the group that was entered. */
export interface Pill {
  readonly port: Port;
  readonly isInput: boolean;
}

export class Scene {
  readonly children: readonly number[][];
  /** Names of the parts that stay the same when the graph grows. */
  readonly keys: string[];
  entered = 0;
  boxes: readonly Box[] = [];
  drawn: readonly Drawn[] = [];
  pills: readonly Pill[] = [];
  size: Rect = { x: 0, y: 0, width: 0, height: 0 };
  #open: ReadonlySet<number> = new Set();
  #orders = new Map<number, Ordering>();
  #placed = new Map<number, Placement>();
  #extents = new Map<number, Extent>();
  #lines = new WeakMap<Placement, readonly Line[]>();
  #boxOf = new Map<number, Box>();
  #byKey = new Map<string, number>();

  /** `groups` are the parts that have something inside, where not all of that is known yet. */
  constructor(
    readonly graph: NestedGraph,
    readonly groups: ReadonlySet<number> = new Set(),
  ) {
    this.children = graph.parents.map(() => []);
    this.keys = graph.parents.map(() => "");
    this.know(graph.parents.keys());
    this.add(graph.groups);
  }

  /** Take in what the graph now says of some parts. */
  know(parts: Iterable<number>): void {
    const known = [...parts].filter((part) => part === 0 || this.parent(part) !== NOTHING);
    for (const part of known) this.children[this.parent(part)]?.push(part);
    for (const part of known) {
      const key = this.#key(part);
      this.keys[part] = key;
      if (key !== "") this.#byKey.set(key, part);
    }
  }

  /** Orders of groups that were not sent at first. */
  add(orders: readonly GroupOrder[]): void {
    for (const order of orders) {
      this.#orders.set(order.group, unpacked(order));
      this.#forget(order.group);
    }
  }

  /** The part with a site or other key. */
  named(key: string): number | null {
    return this.#byKey.get(key) ?? null;
  }

  isGroup(part: number): boolean {
    return (this.children[part]?.length ?? 0) > 0 || this.groups.has(part);
  }

  isOpen(part: number): boolean {
    return this.#open.has(part);
  }

  isPill(part: number): boolean {
    return part >= this.graph.parents.length;
  }

  pill(part: number): Pill | null {
    return this.pills[part - this.graph.parents.length] ?? null;
  }

  parent(part: number): number {
    return this.graph.parents[part] ?? NOTHING;
  }

  /** From the whole down to a part. */
  chain(part: number): number[] {
    const found: number[] = [];
    for (let at = part; at !== NOTHING; at = this.parent(at)) found.unshift(at);
    return found;
  }

  box(part: number): Box | null {
    return this.#boxOf.get(part) ?? null;
  }

  /** The visible part that shows a part: itself, or the closed group around it. */
  shownFor(part: number): number | null {
    for (let at = part; at !== NOTHING; at = this.parent(at)) if (this.#boxOf.has(at)) return at;
    return null;
  }

  /** Calls, tensors and modules inside a part that is nothing by itself. */
  members(part: number): readonly number[] {
    const role = this.graph.roles[part];
    if (role !== "repeat" && role !== "section") return [part];
    return (this.children[part] ?? []).flatMap((child) =>
      this.graph.roles[child] === "merge" ? [] : this.members(child),
    );
  }

  /** Where the flows into a merge come from: calls, or the input of the call around it and the call that gave it. */
  sourcesOf(merge: number): readonly Branch[] {
    const group = this.parent(merge);
    const order = this.#orders.get(group);
    const found = new Map<string, Branch>();
    for (const target of order?.targets ?? []) {
      if (target.child !== merge) continue;
      const flow = order?.flows[target.flow];
      if (flow === undefined) continue;
      const branches =
        this.graph.roles[flow.source] === "merge"
          ? this.sourcesOf(flow.source)
          : [
              {
                inputOf: flow.source === NOTHING ? this.#call(group) : null,
                part: this.#origin(group, flow),
              },
            ];
      for (const branch of branches) found.set(`${branch.inputOf} ${branch.part}`, branch);
    }
    return [...found.values()];
  }

  /** The call that a group is, or that it is a part of. */
  #call(group: number): number {
    const isCall = this.graph.sites[group] !== "" || this.parent(group) === NOTHING;
    return isCall ? group : this.#call(this.parent(group));
  }

  /** The part that gave the tensor of a flow; null where several did, or nobody knows. */
  #origin(group: number, flow: Flow): number | null {
    if (flow.source === NOTHING) {
      const outer = this.#orders.get(this.parent(group));
      const target = outer?.targets.find(({ child, into }) => child === group && into === flow.tensor);
      const before = target === undefined ? undefined : outer?.flows[target.flow];
      return before === undefined ? null : this.#origin(this.parent(group), before);
    }
    if (this.graph.roles[flow.source] === "merge") return null;
    if (this.graph.sites[flow.source] !== "") return flow.source;
    const inner = this.#orders
      .get(flow.source)
      ?.flows.find(({ tensor, leaves }) => leaves && tensor === flow.outOf);
    return inner === undefined ? null : this.#origin(flow.source, inner);
  }

  /** Show what is open inside the part that was entered. Gives the groups whose order is not known yet. */
  arrange(entered: number, open: ReadonlySet<number>): number[] {
    if (entered !== this.entered) this.#placed.clear();
    for (const part of new Set([...this.#open, ...open])) {
      if (this.#open.has(part) !== open.has(part)) this.#forget(part);
    }
    this.entered = entered;
    this.#open = new Set([...open, entered]);
    this.#place();
    return [...this.#open].filter((part) => this.isGroup(part) && !this.#orders.has(part));
  }

  /** A group of another size moves everything around it. */
  #forget(part: number): void {
    for (let at = part; at !== NOTHING; at = this.parent(at)) this.#placed.delete(at);
  }

  #key(part: number): string {
    const role = this.graph.roles[part];
    const site = this.graph.sites[part] ?? "";
    if (site !== "" || role === "merge") return site;
    const first = this.children[part]?.find((child) => this.graph.roles[child] !== "merge");
    return first === undefined ? "" : `${role}:${this.#key(first)}`;
  }

  #place(): void {
    const root = this.entered;
    const around = this.#around(root);
    const extents = new Map(around.spots.map(({ child }) => [child, this.#extent(child, around)]));
    const whole = place(around, (child) => extents.get(child) ?? NONE, {
      padding: 8,
      titleHeight: 0,
      titleWidth: 0,
    });
    const boxes: Box[] = [];
    const drawn: Drawn[] = [];
    this.#boxOf.clear();
    const walk = (group: Placement, x: number, y: number, depth: number): void => {
      drawn.push({ box: { x, y, width: group.width, height: group.height }, lines: this.#linesOf(group) });
      for (const child of group.spotOf.keys()) {
        const [left, top] = cornerOf(group, child);
        const { width, height } = group.extents(child);
        const inner = this.#isShownOpen(child) ? this.#placed.get(child) : undefined;
        const box: Box = {
          part: child,
          x: x + left,
          y: y + top,
          width,
          height,
          open: inner !== undefined,
          depth,
          title: inner?.title ?? [0, 0],
        };
        boxes.push(box);
        this.#boxOf.set(child, box);
        if (inner !== undefined) walk(inner, box.x, box.y, depth + 1);
      }
    };
    walk(whole, 0, 0, 0);
    this.boxes = boxes;
    this.drawn = drawn;
    this.size = { x: 0, y: 0, width: whole.width, height: whole.height };
  }

  #isShownOpen(part: number): boolean {
    return this.#open.has(part) && this.#orders.has(part);
  }

  #group(part: number): Placement | null {
    const ordering = this.#orders.get(part);
    if (ordering === undefined) return null;
    const known = this.#placed.get(part);
    if (known !== undefined) return known;
    const extents = new Map<number, Extent>();
    for (const { child } of ordering.spots)
      if (child !== NOTHING) extents.set(child, this.#extent(child, ordering));
    const frame: Frame = { ...FRAME, titleWidth: this.graph.title_widths[part] ?? 0 };
    const placed = place(ordering, (child) => extents.get(child) ?? NONE, frame);
    this.#placed.set(part, placed);
    return placed;
  }

  /** Size of a child as seen in the group with this ordering. */
  #extent(child: number, ordering: Ordering): Extent {
    if (this.isPill(child)) {
      const known = this.#extents.get(child);
      if (known !== undefined) return known;
    }
    const inner = this.#isShownOpen(child) ? this.#group(child) : null;
    if (inner !== null) return extentOf(inner, entering(ordering, child), leaving(ordering, child));
    return {
      width: this.graph.widths[child] ?? 0,
      height: this.graph.heights[child] ?? 0,
      entries: NO_PORTS,
      exits: NO_PORTS,
    };
  }

  #linesOf(placed: Placement): readonly Line[] {
    let lines = this.#lines.get(placed);
    if (lines === undefined) {
      lines = [...linesOf(placed)];
      this.#lines.set(placed, lines);
    }
    return lines;
  }

  /** The group that was entered between pills for its inputs and outputs. */
  #around(root: number): Ordering {
    const inner = this.#orders.get(root);
    const base = this.graph.parents.length;
    const pills: Pill[] = [
      ...inOrder(inner?.inputs ?? [], inner, 0).map((port) => ({ port, isInput: true })),
      ...inOrder(inner?.outputs ?? [], inner, (inner?.layers.length ?? 1) - 1).map((port) => ({
        port,
        isInput: false,
      })),
    ];
    this.pills = pills;
    this.#extents.clear();
    pills.forEach(({ port }, at) => {
      const letters = Math.max(port.name.length, port.shape.length);
      this.#extents.set(base + at, {
        width: Math.max(PILL.narrowest, letters * PILL.letter + PILL.margin),
        height: port.shape === "" ? PILL.height : PILL.height + 12,
        entries: NO_PORTS,
        exits: NO_PORTS,
      });
    });
    const inputs = pills.flatMap((pill, at) => (pill.isInput ? [at] : []));
    const outputs = pills.flatMap((pill, at) => (pill.isInput ? [] : [at]));
    const layers = [inputs, [pills.length], outputs].filter((layer) => layer.length > 0);
    const middle = inputs.length > 0 ? 1 : 0;
    const layerOf = (at: number) => (at === pills.length ? middle : pills[at]?.isInput ? 0 : middle + 1);
    const wired = pills.flatMap((pill, at) => (pill.port.tensor === NOTHING ? [] : [{ pill, at }]));
    return {
      group: NOTHING,
      flows: wired.map(({ pill, at }) => ({
        tensor: at,
        source: pill.isInput ? base + at : root,
        leaves: false,
        outOf: pill.isInput ? NOTHING : pill.port.tensor,
      })),
      targets: wired.map(({ pill, at }, flow) => ({
        flow,
        child: pill.isInput ? root : base + at,
        into: pill.isInput ? pill.port.tensor : NOTHING,
      })),
      spots: [...pills.map((_, at) => base + at), root].map((child, at) => ({
        layer: layerOf(at),
        child,
        flow: NOTHING,
      })),
      links: wired.map(({ pill, at }, flow) => ({
        upper: pill.isInput ? at : pills.length,
        lower: pill.isInput ? pills.length : at,
        flow,
      })),
      layers,
      lanes: [],
      inputs: [],
      outputs: [],
    };
  }
}

const NO_PORTS: ReadonlyMap<number, number> = new Map();
const NONE: Extent = { width: 0, height: 0, entries: NO_PORTS, exits: NO_PORTS };

function* linesOf(placed: Placement): Generator<Line> {
  const { flows, targets, lanes } = placed.ordering;
  const isBack = new Map(lanes.map((lane) => [`${lane.flow},${lane.target}`, lane]));
  for (const { flow, child } of targets) {
    const { tensor, source } = flows[flow] ?? { tensor: NOTHING, source: NOTHING };
    if (tensor < 0) continue;
    const lane = isBack.get(`${flow},${child}`);
    const points = lane === undefined ? route(placed, flow, child) : wayBack(placed, lane);
    yield { points, source, target: child, back: lane !== undefined };
  }
  for (let flow = 0; flow < flows.length; flow++) {
    const { tensor, source, leaves } = flows[flow] ?? { tensor: NOTHING, source: NOTHING, leaves: false };
    if (leaves && tensor >= 0)
      yield { points: route(placed, flow, NOTHING), source, target: NOTHING, back: false };
  }
}

/** Tensors outside a child by those inside that continue them. */
function entering(ordering: Ordering, child: number): Outside {
  const found = new Map<number, number[]>();
  for (const { flow, child: target, into } of ordering.targets)
    if (target === child && into !== NOTHING) push(found, into, ordering.flows[flow]?.tensor ?? NOTHING);
  return found;
}

function leaving(ordering: Ordering, child: number): Outside {
  const found = new Map<number, number[]>();
  for (const { source, outOf, tensor } of ordering.flows)
    if (source === child && outOf !== NOTHING) push(found, outOf, tensor);
  return found;
}

function push(into: Map<number, number[]>, key: number, value: number): void {
  const known = into.get(key);
  if (known === undefined) into.set(key, [value]);
  else known.push(value);
}

/** Ports in the order in which they cross the border of their group. */
function inOrder(ports: readonly Port[], inner: Ordering | undefined, layer: number): Port[] {
  const tensors = (inner?.layers[layer] ?? []).map((spot) => {
    const flow = inner?.spots[spot]?.flow ?? NOTHING;
    return inner?.flows[flow]?.tensor ?? NOTHING;
  });
  const at = (port: Port) => {
    const found = tensors.indexOf(port.tensor);
    return found < 0 || port.tensor === NOTHING ? tensors.length : found;
  };
  return [...ports].sort((a, b) => at(a) - at(b));
}
