/** The x of everything in a group. The same as `layerscope/graph/layout_x.py`, and tested against the same golden files. */

import { type Link, NOTHING, type Ordering } from "./order";

const BETWEEN_CHILDREN = 22;
const BESIDE_BEND = 14;
const BETWEEN_BENDS = 10;
const SWEEPS = 6;
const [CHILDREN_LINK, BENDS_LINK, SIDE_LINK] = [64, 4, 1];

/** Size of a child, and where tensors cross its border, measured from its left. */
export interface Extent {
  readonly width: number;
  readonly height: number;
  readonly entries: ReadonlyMap<number, number>;
  readonly exits: ReadonlyMap<number, number>;
}

/** The ports of a closed node. */
export const NO_PORTS: ReadonlyMap<number, number> = new Map();

export type Extents = (child: number) => Extent;
type Weighted = readonly [value: number, weight: number];
type Near = readonly [spot: number, offset: number, weight: number];

/** Where a link leaves and arrives, measured from the centers of its spots. */
export function linkEnds(ordering: Ordering, extents: Extents, link: Link): [number, number] {
  const tensor = ordering.flows[link.flow]?.tensor ?? NOTHING;
  const upper = ordering.spots[link.upper]?.child ?? NOTHING;
  const lower = ordering.spots[link.lower]?.child ?? NOTHING;
  return [
    upper === NOTHING ? 0 : crossing(extents(upper), extents(upper).exits, tensor),
    lower === NOTHING ? 0 : crossing(extents(lower), extents(lower).entries, tensor),
  ];
}

function crossing(extent: Extent, ports: ReadonlyMap<number, number>, tensor: number): number {
  const at = ports.get(tensor);
  return at === undefined ? 0 : at - extent.width / 2;
}

/** Places as near as possible to the wanted ones, in order and at least so far apart. */
export function settle(
  wanted: readonly number[],
  weights: readonly number[],
  apart: readonly number[],
): number[] {
  const shifts = [0];
  for (const distance of apart) shifts.push((shifts.at(-1) ?? 0) + distance);
  const pools: { middle: number; members: Weighted[] }[] = [];
  wanted.forEach((want, at) => {
    let middle = want - (shifts[at] ?? 0);
    let members: Weighted[] = [[middle, weights[at] ?? 0]];
    for (let last = pools.at(-1); last !== undefined && last.middle > middle; last = pools.at(-1)) {
      members = [...last.members, ...members];
      pools.pop();
      middle = median(members);
    }
    pools.push({ middle, members });
  });
  const places: number[] = [];
  for (const { middle, members } of pools)
    for (const _ of members) places.push(middle + (shifts[places.length] ?? 0));
  return places;
}

export function median(weighted: readonly Weighted[]): number {
  if (weighted.length === 1) return weighted[0]?.[0] ?? 0;
  const ordered = [...weighted].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let half = 0;
  for (const [, weight] of ordered) half += weight;
  half /= 2;
  let total = 0;
  for (let at = 0; at < ordered.length - 1; at++) {
    const [value, weight] = ordered[at] ?? [0, 0];
    total += weight;
    if (total > half) return value;
    if (total === half) return (value + (ordered[at + 1]?.[0] ?? 0)) / 2;
  }
  return ordered.at(-1)?.[0] ?? 0;
}

/** The center of each spot: each layer settles under its neighbors, down and up in turn; long lines are straightened. */
export function across(ordering: Ordering, extents: Extents): number[] {
  const { spots, layers } = ordering;
  const [up, down] = neighbors(ordering, extents);
  const apart = layers.map((layer) => distances(ordering, extents, layer));
  const x = new Array<number>(spots.length).fill(0);
  layers.forEach((layer, number) => {
    const gaps = apart[number] ?? [];
    let at = -gaps.reduce((sum, gap) => sum + gap, 0) / 2;
    layer.forEach((spot, place) => {
      x[spot] = at;
      at += gaps[place] ?? 0;
    });
  });
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const near = sweep % 2 === 0 ? up : down;
    const numbers = layers.map((_, number) => (sweep % 2 === 0 ? number : layers.length - 1 - number));
    for (const number of numbers) settleLayer(x, layers[number] ?? [], near, apart[number] ?? []);
  }
  straighten(x, ordering, apart);
  return x;
}

function neighbors(ordering: Ordering, extents: Extents): [Near[][], Near[][]] {
  const { spots, links } = ordering;
  const up: Near[][] = spots.map(() => []);
  const down: Near[][] = spots.map(() => []);
  const fed = new Set(links.map((link) => link.lower));
  for (const link of links) {
    const [leaves, enters] = linkEnds(ordering, extents, link);
    const hangs = !fed.has(link.upper) && (spots[link.upper]?.layer ?? 0) > 0;
    const weight = weightOf(ordering, link, hangs);
    up[link.lower]?.push([link.upper, leaves - enters, weight]);
    down[link.upper]?.push([link.lower, enters - leaves, weight]);
  }
  return [up, down];
}

/** How much a link wants to be straight. */
function weightOf(ordering: Ordering, link: Link, hangs: boolean): number {
  const [upper, lower] = [ordering.spots[link.upper], ordering.spots[link.lower]];
  const upperBends = upper?.child === NOTHING;
  const lowerBends = lower?.child === NOTHING;
  const ports =
    Number(upperBends && upper?.layer === 0) +
    Number(lowerBends && lower?.layer === ordering.layers.length - 1);
  const bends = Number(upperBends) + Number(lowerBends) - ports;
  if (bends === 2) return BENDS_LINK;
  return bends > 0 || hangs ? SIDE_LINK : CHILDREN_LINK;
}

function settleLayer(x: number[], layer: readonly number[], near: readonly Near[][], apart: number[]): void {
  const wanted: number[] = [];
  const weights: number[] = [];
  for (const spot of layer) {
    const ends = (near[spot] ?? []).map(
      ([other, offset, weight]): Weighted => [(x[other] ?? 0) + offset, weight],
    );
    wanted.push(ends.length > 0 ? median(ends) : (x[spot] ?? 0));
    weights.push(ends.reduce((sum, [, weight]) => sum + weight, 0) || 0.5);
  }
  settle(wanted, weights, apart).forEach((place, at) => {
    x[layer[at] ?? 0] = place;
  });
}

/** How far the centers of neighbors must be apart. */
function distances(ordering: Ordering, extents: Extents, layer: readonly number[]): number[] {
  const width = (spot: number): number | null => {
    const child = ordering.spots[spot]?.child ?? NOTHING;
    return child === NOTHING ? null : extents(child).width;
  };
  return layer.slice(1).map((right, at) => {
    const widths = [width(layer[at] ?? 0), width(right)].filter((wide) => wide !== null);
    const free = [BETWEEN_BENDS, BESIDE_BEND, BETWEEN_CHILDREN][widths.length] ?? 0;
    return widths.reduce((sum, wide) => sum + wide, 0) / 2 + free;
  });
}

/** Long lines take one x wherever their neighbors leave room. */
function straighten(x: number[], ordering: Ordering, apart: readonly number[][]): void {
  const trunks = new Map<number, number[]>();
  ordering.spots.forEach(({ flow, layer }, at) => {
    if (flow === NOTHING || layer === 0 || layer >= ordering.layers.length - 1) return;
    const trunk = trunks.get(flow);
    if (trunk === undefined) trunks.set(flow, [at]);
    else trunk.push(at);
  });
  const place = new Map<number, [number, number]>();
  ordering.layers.forEach((layer, number) => {
    layer.forEach((spot, at) => {
      place.set(spot, [number, at]);
    });
  });
  const room = (spot: number): [number, number] => {
    const [number, at] = place.get(spot) ?? [0, 0];
    const [layer, gaps] = [ordering.layers[number] ?? [], apart[number] ?? []];
    return [
      at > 0 ? (x[layer[at - 1] ?? 0] ?? 0) + (gaps[at - 1] ?? 0) : Number.NEGATIVE_INFINITY,
      at + 1 < layer.length ? (x[layer[at + 1] ?? 0] ?? 0) - (gaps[at] ?? 0) : Number.POSITIVE_INFINITY,
    ];
  };
  for (const trunk of trunks.values()) {
    if (trunk.length < 2) continue;
    let run: number[] = [];
    let [low, high] = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (const spot of trunk) {
      const [below, above] = room(spot);
      if (Math.max(low, below) > Math.min(high, above)) {
        align(x, run, low, high);
        [run, low, high] = [[], below, above];
      }
      run.push(spot);
      [low, high] = [Math.max(low, below), Math.min(high, above)];
    }
    align(x, run, low, high);
  }
}

function align(x: number[], run: readonly number[], low: number, high: number): void {
  if (run.length === 0) return;
  const place = Math.min(Math.max(median(run.map((spot) => [x[spot] ?? 0, 1])), low), high);
  for (const spot of run) x[spot] = place;
}
