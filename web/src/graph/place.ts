/** Sizes and an ordering → x and y of everything in a group. The same as `layerscope/graph/place.py` without columns. */

import { across, type Extent, type Extents, linkEnds, settle } from "./layoutx";
import { type Lane, NOTHING, type Ordering } from "./order";

const [GAP, STEEP, STEEPEST, PORT_GAP] = [26, 0.07, 44, 16];
const [BETWEEN_PORTS, PORT_MARGIN, LANE] = [12, 10, 14];
/** Heights that a way back rises above its layer: for each lane, and for an arrow. */
export const [RISE, ARROW] = [7, 12];

export type Point = readonly [x: number, y: number];

export interface Frame {
  readonly padding: number;
  readonly titleHeight: number;
  readonly titleWidth: number;
}

/** A placed group; everything is measured from its upper left corner. */
export interface Placement {
  readonly ordering: Ordering;
  readonly extents: Extents;
  readonly frame: Frame;
  width: number;
  height: number;
  /** Center of each spot. */
  x: number[];
  /** Top and bottom of each layer. */
  bands: [number, number][];
  lanes: Map<Lane, number>;
  /** Where the title begins, and the room it has. */
  title: [number, number];
  departures: Map<number, number>;
  arrivals: Map<string, number>;
  spotOf: Map<number, number>;
  above: Map<string, number>;
}

/** The key of a flow at a child or spot. */
export const pair = (flow: number, of: number) => `${flow},${of}`;

export function place(ordering: Ordering, extents: Extents, frame: Frame): Placement {
  const placed: Placement = {
    ordering,
    extents,
    frame,
    width: 0,
    height: 0,
    x: across(ordering, extents),
    bands: [],
    lanes: new Map(),
    title: [0, 0],
    departures: new Map(),
    arrivals: new Map(),
    spotOf: new Map(),
    above: new Map(),
  };
  ordering.spots.forEach(({ child }, at) => {
    if (child !== NOTHING) placed.spotOf.set(child, at);
  });
  for (const { flow, lower, upper } of ordering.links) placed.above.set(pair(flow, lower), upper);
  new Stack(placed).run();
  titleRoom(placed);
  setEnds(placed);
  return placed;
}

/** Puts the layers of a group below one another. */
class Stack {
  readonly last: number;
  readonly atTop: boolean;
  readonly atBottom: boolean;
  readonly out: number[];
  readonly into: number[];

  constructor(readonly placed: Placement) {
    const { layers, spots, flows, lanes } = placed.ordering;
    this.last = layers.length - 1;
    this.atTop = layers[0]?.every((spot) => spots[spot]?.child === NOTHING) ?? false;
    this.atBottom = flows.some((flow) => flow.leaves);
    this.out = layers.map(() => 0);
    this.into = layers.map(() => 0);
    for (const lane of lanes) {
      const [first, last] = this.span(lane);
      const rise = ARROW + RISE * (lane.number + 1);
      this.into[first] = Math.max(this.into[first] ?? 0, rise);
      this.out[last] = Math.max(this.out[last] ?? 0, rise);
    }
  }

  span(lane: Lane): [number, number] {
    const source = this.placed.ordering.flows[lane.flow]?.source ?? NOTHING;
    const ends = [lane.target, source]
      .filter((end) => end !== NOTHING)
      .map((end) => layerOf(this.placed, end));
    return [Math.min(...ends), Math.max(...ends)];
  }

  run(): void {
    const { placed } = this;
    const { padding } = placed.frame;
    if (this.last < 0) {
      placed.width = placed.height = 2 * padding;
      return;
    }
    const [heights, gaps] = [this.heights(), this.gaps()];
    this.sideBySide();
    let y = this.atTop ? 0 : placed.frame.titleHeight + padding + (this.into[0] ?? 0);
    heights.forEach((height, at) => {
      placed.bands.push([y, y + height]);
      y += height + (gaps[at] ?? 0);
    });
    const foot = this.atBottom ? 0 : padding + (this.out[this.last] ?? 0);
    placed.height = (placed.bands.at(-1)?.[1] ?? 0) + foot;
    if (this.atBottom) placed.bands[this.last] = [placed.height, placed.height];
  }

  heights(): number[] {
    const { ordering, extents } = this.placed;
    return ordering.layers.map((layer) =>
      layer.reduce((most, spot) => {
        const child = ordering.spots[spot]?.child ?? NOTHING;
        return child === NOTHING ? most : Math.max(most, extents(child).height);
      }, 0),
    );
  }

  /** The room below each layer. */
  gaps(): number[] {
    const { ordering, extents, x, frame } = this.placed;
    const away = ordering.layers.map(() => 0);
    for (const link of ordering.links) {
      const [leaves, enters] = linkEnds(ordering, extents, link);
      const sideways = Math.abs((x[link.lower] ?? 0) + enters - (x[link.upper] ?? 0) - leaves);
      const layer = ordering.spots[link.upper]?.layer ?? 0;
      away[layer] = Math.max(away[layer] ?? 0, sideways);
    }
    return away.map((sideways, at) => {
      const isBorder = (at === 0 && this.atTop) || (at === this.last - 1 && this.atBottom);
      const turns = (this.out[at] ?? 0) + (at < this.last ? (this.into[at + 1] ?? 0) : 0);
      const title = at === 0 && this.atTop ? frame.titleHeight : 0;
      return (isBorder ? PORT_GAP : GAP) + Math.min(STEEPEST, STEEP * sideways) + turns + title;
    });
  }

  /** Moves everything to the padding at the left, and puts the ways back beside it. */
  sideBySide(): void {
    const { ordering, extents, x, frame, lanes } = this.placed;
    let [left, right] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    ordering.spots.forEach(({ child }, at) => {
      const half = child === NOTHING ? 0 : extents(child).width / 2;
      left = Math.min(left, (x[at] ?? 0) - half);
      right = Math.max(right, (x[at] ?? 0) + half);
    });
    this.placed.x = x.map((at) => at + (frame.padding - left));
    let edge = frame.padding + right - left;
    const beside = new Map<number, number>();
    for (const lane of [...ordering.lanes].sort((a, b) => a.number - b.number)) {
      const at = beside.get(lane.number) ?? edge + LANE;
      beside.set(lane.number, at);
      lanes.set(lane, at);
      edge = Math.max(edge, at);
    }
    this.placed.width = edge + frame.padding;
  }
}

/** Finds the widest room for the title between the lines that come in at the top, and makes it wide enough. */
function titleRoom(placed: Placement): void {
  const { ordering, frame } = placed;
  if (frame.titleWidth === 0) return;
  const ports = (ordering.layers[0] ?? [])
    .filter((spot) => ordering.spots[spot]?.child === NOTHING)
    .map((spot) => placed.x[spot] ?? 0)
    .sort((a, b) => a - b);
  const borders = [0, ...ports, placed.width];
  let rooms = borders.slice(1).map((right, at) => [right - (borders[at] ?? 0), borders[at] ?? 0] as const);
  if (rooms.every(([wide]) => wide < frame.titleWidth))
    rooms = rooms.filter((_, at) => at % (rooms.length - 1 || 1) === 0); // which can be made wider
  const [room, start] = rooms.reduce((widest, each) => (each[0] > widest[0] ? each : widest));
  const missing = Math.max(0, frame.titleWidth - room);
  if (missing > 0 && start === 0) {
    placed.x = placed.x.map((x) => x + missing);
    for (const [lane, x] of placed.lanes) placed.lanes.set(lane, x + missing);
  }
  placed.width += missing;
  placed.title = [start, room + missing];
}

/** Where on the border of its children each flow arrives and departs: straight on where that is possible. */
function setEnds(placed: Placement): void {
  const { ordering, extents, x } = placed;
  const arriving = new Map<number, [number, number][]>();
  const leaving = new Map<number, Map<number, number>>();
  const arrive = (child: number, at: number, flow: number) => {
    const ends = arriving.get(child);
    if (ends === undefined) arriving.set(child, [[at, flow]]);
    else ends.push([at, flow]);
  };
  const leave = (child: number, flow: number, at: number, isFirst: boolean) => {
    const ends = leaving.get(child) ?? new Map<number, number>();
    if (!isFirst || !ends.has(flow)) ends.set(flow, at);
    leaving.set(child, ends);
  };
  for (const link of ordering.links) {
    const upper = ordering.spots[link.upper]?.child ?? NOTHING;
    const lower = ordering.spots[link.lower]?.child ?? NOTHING;
    const [leaves] = linkEnds(ordering, extents, link);
    if (lower !== NOTHING) arrive(lower, (x[link.upper] ?? 0) + leaves, link.flow);
    if (upper !== NOTHING) leave(upper, link.flow, x[link.lower] ?? 0, false);
  }
  for (const [lane, at] of placed.lanes) {
    const source = ordering.flows[lane.flow]?.source ?? NOTHING;
    arrive(lane.target, at, lane.flow);
    if (source !== NOTHING) leave(source, lane.flow, at, true);
  }
  for (const [child, ends] of arriving)
    for (const [flow, at] of spread(placed, child, ends, extents(child).entries))
      placed.arrivals.set(pair(flow, child), at);
  for (const [child, to] of leaving) {
    const ends = [...to].map(([flow, at]): [number, number] => [at, flow]);
    const only = ends[0];
    if (ends.length === 1 && only !== undefined) ends[0] = [x[placed.spotOf.get(child) ?? 0] ?? 0, only[1]];
    for (const [flow, at] of spread(placed, child, ends, extents(child).exits))
      placed.departures.set(flow, at);
  }
}

/** Places on the border of a child for flows that come from, or go to, the given x. */
function spread(
  placed: Placement,
  child: number,
  ends: [number, number][],
  ports: ReadonlyMap<number, number>,
): [number, number][] {
  ends.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const middle = placed.x[placed.spotOf.get(child) ?? 0] ?? 0;
  const { width } = placed.extents(child);
  const [left, right] = [middle - width / 2 + PORT_MARGIN, middle + width / 2 - PORT_MARGIN];
  const tight = Math.min(1, (right - left) / Math.max(1, BETWEEN_PORTS * (ends.length - 1)));
  const shifts = ends.map((_, at) => at * BETWEEN_PORTS * tight);
  const whole = shifts.at(-1) ?? 0;
  const wanted = ends.map(([x]) => Math.min(Math.max(x, left), right));
  const straight = wanted.map((want, at) => (Math.abs(want - (ends[at]?.[0] ?? 0)) < 0.5 ? 4 : 1));
  const apart = shifts.slice(1).map((shift, at) => shift - (shifts[at] ?? 0));
  return settle(wanted, straight, apart).map((at, i) => {
    const [shift, flow] = [shifts[i] ?? 0, ends[i]?.[1] ?? 0];
    const port = ports.get(placed.ordering.flows[flow]?.tensor ?? NOTHING);
    const held = Math.max(Math.min(at, right - whole + shift), left + shift);
    return [flow, port === undefined ? held : middle - width / 2 + port];
  });
}

export function layerOf(placed: Placement, child: number): number {
  return placed.ordering.spots[placed.spotOf.get(child) ?? 0]?.layer ?? 0;
}

/** Upper left corner of a child. */
export function cornerOf(placed: Placement, child: number): Point {
  const [top, bottom] = placed.bands[layerOf(placed, child)] ?? [0, 0];
  const { width, height } = placed.extents(child);
  return [(placed.x[placed.spotOf.get(child) ?? 0] ?? 0) - width / 2, (top + bottom - height) / 2];
}

/** The group as a child of the group around it; the maps give the tensors outside for those inside. */
export function extentOf(placed: Placement, entering: Outside, leaving: Outside): Extent {
  const { spots, flows, layers } = placed.ordering;
  const [entries, exits] = [new Map<number, number>(), new Map<number, number>()];
  spots.forEach(({ child, flow, layer }, at) => {
    if (child !== NOTHING || flow === NOTHING) return;
    const tensor = flows[flow]?.tensor ?? NOTHING;
    const [outside, found] = layer === 0 ? [entering, entries] : [leaving, exits];
    if (layer !== 0 && layer !== layers.length - 1) return;
    for (const other of outside.get(tensor) ?? []) found.set(other, placed.x[at] ?? 0);
  });
  return { width: placed.width, height: placed.height, entries, exits };
}

export type Outside = ReadonlyMap<number, readonly number[]>;
