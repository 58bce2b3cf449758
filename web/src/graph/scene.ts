/** Open groups and the position of every node. Shared by module graphs and traces. */

import type { GroupOrder, NestedGraph } from "../wire.gen";
import { type Branch, Branches } from "./branches";
import { around, type IoNode, ioNodeExtent, ioNodesOf } from "./ionodes";
import { type Extent, NO_PORTS } from "./layoutx";
import { type Drawn, type Line, linesOf } from "./lines";
import { NOTHING, type Ordering, unpacked } from "./order";
import { cornerOf, extentOf, type Frame, type Outside, type Placement, place } from "./place";
import type { Rect } from "./rect";

const FRAME = { padding: 14, titleHeight: 22 };

/** The box of a visible node; an open node is the box around its children. */
export interface Box extends Rect {
  readonly node: number;
  readonly open: boolean;
  readonly depth: number;
  /** Of an open box: where its title begins, from its left, and the room it has. */
  readonly title: readonly [number, number];
}

export class Scene {
  readonly children: readonly number[][];
  /** Names of the nodes that stay the same when the graph grows. */
  readonly keys: string[];
  entered = 0;
  boxes: readonly Box[] = [];
  drawn: readonly Drawn[] = [];
  ioNodes: readonly IoNode[] = [];
  size: Rect = { x: 0, y: 0, width: 0, height: 0 };
  #open: ReadonlySet<number> = new Set();
  #orders = new Map<number, Ordering>();
  #placed = new Map<number, Placement>();
  #lines = new WeakMap<Placement, readonly Line[]>();
  #boxOf = new Map<number, Box>();
  #byKey = new Map<string, number>();

  /** `groups` are the nodes with children, where not all children are known yet. */
  constructor(
    readonly graph: NestedGraph,
    readonly groups: ReadonlySet<number> = new Set(),
  ) {
    this.children = graph.parents.map(() => []);
    this.keys = graph.parents.map(() => "");
    this.know(graph.parents.keys());
    this.add(graph.groups);
  }

  /** Update some nodes after the graph has changed. */
  know(nodes: Iterable<number>): void {
    const known = [...nodes].filter((node) => node === 0 || this.parent(node) !== NOTHING);
    for (const node of known) this.children[this.parent(node)]?.push(node);
    for (const node of known) {
      const key = this.#key(node);
      this.keys[node] = key;
      if (key !== "") this.#byKey.set(key, node);
    }
  }

  /** Orders of groups that were not sent at first. */
  add(orders: readonly GroupOrder[]): void {
    for (const order of orders) {
      this.#orders.set(order.group, unpacked(order));
      this.#forget(order.group);
    }
  }

  /** The node with a site or other key. */
  named(key: string): number | null {
    return this.#byKey.get(key) ?? null;
  }

  isGroup(node: number): boolean {
    return (this.children[node]?.length ?? 0) > 0 || this.groups.has(node);
  }

  isOpen(node: number): boolean {
    return this.#open.has(node);
  }

  isIoNode(node: number): boolean {
    return node >= this.graph.parents.length;
  }

  ioNode(node: number): IoNode | null {
    return this.ioNodes[node - this.graph.parents.length] ?? null;
  }

  parent(node: number): number {
    return this.graph.parents[node] ?? NOTHING;
  }

  /** The nodes from the root down to a node. */
  chain(node: number): number[] {
    const nodes: number[] = [];
    for (let at = node; at !== NOTHING; at = this.parent(at)) nodes.unshift(at);
    return nodes;
  }

  box(node: number): Box | null {
    return this.#boxOf.get(node) ?? null;
  }

  /** The visible node that shows a node: itself, or the closed group around it. */
  shownFor(node: number): number | null {
    for (let at = node; at !== NOTHING; at = this.parent(at)) if (this.#boxOf.has(at)) return at;
    return null;
  }

  /** Calls, tensors and modules inside a node that only groups them. */
  members(node: number): readonly number[] {
    const role = this.graph.roles[node];
    if (role !== "repeat" && role !== "section") return [node];
    return (this.children[node] ?? []).flatMap((child) =>
      this.graph.roles[child] === "merge" ? [] : this.members(child),
    );
  }

  /** The site of a node, or the first of several. */
  siteOf(node: number): string {
    return this.graph.sites[this.members(node)[0] ?? node] ?? "";
  }

  /** Where the flows into a merge come from: calls, or the input of the call around it and the call that produced it. */
  sourcesOf(merge: number): readonly Branch[] {
    return new Branches(this.graph, this.#orders).into(merge);
  }

  /** Arrange the open nodes inside the entered one. Returns the groups whose order is not known yet. */
  arrange(entered: number, open: ReadonlySet<number>): number[] {
    if (entered !== this.entered) this.#placed.clear();
    for (const node of new Set([...this.#open, ...open])) {
      if (this.#open.has(node) !== open.has(node)) this.#forget(node);
    }
    this.entered = entered;
    this.#open = new Set([...open, entered]);
    this.#place();
    return [...this.#open].filter((node) => this.isGroup(node) && !this.#orders.has(node));
  }

  /** A group of another size moves everything around it. */
  #forget(node: number): void {
    for (let at = node; at !== NOTHING; at = this.parent(at)) this.#placed.delete(at);
  }

  #key(node: number): string {
    const role = this.graph.roles[node];
    const site = this.graph.sites[node] ?? "";
    if (site !== "" || role === "merge") return site;
    const first = this.children[node]?.find((child) => this.graph.roles[child] !== "merge");
    return first === undefined ? "" : `${role}:${this.#key(first)}`;
  }

  #place(): void {
    const base = this.graph.parents.length;
    this.ioNodes = ioNodesOf(this.#orders.get(this.entered));
    const whole = around(this.entered, this.ioNodes, base);
    const extents = new Map(whole.spots.map(({ child }) => [child, this.#extent(child, whole)]));
    const placed = place(whole, (child) => extents.get(child) ?? NONE, {
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
          node: child,
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
    walk(placed, 0, 0, 0);
    this.boxes = boxes;
    this.drawn = drawn;
    this.size = { x: 0, y: 0, width: placed.width, height: placed.height };
  }

  #isShownOpen(node: number): boolean {
    return this.#open.has(node) && this.#orders.has(node);
  }

  #group(node: number): Placement | null {
    const ordering = this.#orders.get(node);
    if (ordering === undefined) return null;
    const known = this.#placed.get(node);
    if (known !== undefined) return known;
    const extents = new Map<number, Extent>();
    for (const { child } of ordering.spots)
      if (child !== NOTHING) extents.set(child, this.#extent(child, ordering));
    const frame: Frame = { ...FRAME, titleWidth: this.graph.title_widths[node] ?? 0 };
    const placed = place(ordering, (child) => extents.get(child) ?? NONE, frame);
    this.#placed.set(node, placed);
    return placed;
  }

  /** Size of a child as seen in the group with this ordering. */
  #extent(child: number, ordering: Ordering): Extent {
    const ioNode = this.ioNode(child);
    if (ioNode !== null) return ioNodeExtent(ioNode);
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
}

const NONE: Extent = { width: 0, height: 0, entries: NO_PORTS, exits: NO_PORTS };

/** Tensors outside a child by those inside that continue them. */
function entering(ordering: Ordering, child: number): Outside {
  const tensors = new Map<number, number[]>();
  for (const { flow, child: target, into } of ordering.targets)
    if (target === child && into !== NOTHING) push(tensors, into, ordering.flows[flow]?.tensor ?? NOTHING);
  return tensors;
}

function leaving(ordering: Ordering, child: number): Outside {
  const tensors = new Map<number, number[]>();
  for (const { source, outOf, tensor } of ordering.flows)
    if (source === child && outOf !== NOTHING) push(tensors, outOf, tensor);
  return tensors;
}

function push(into: Map<number, number[]>, key: number, value: number): void {
  const known = into.get(key);
  if (known === undefined) into.set(key, [value]);
  else known.push(value);
}
