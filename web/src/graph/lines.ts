/** The flows of one placed group as lines. */

import { type Lane, NOTHING } from "./order";
import { ARROW, cornerOf, layerOf, type Placement, type Point, pair, RISE } from "./place";
import type { Rect } from "./rect";

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

export function* linesOf(placed: Placement): Generator<Line> {
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

/** The way of a flow to one of its targets, or to the bottom of the group when that is −1. */
export function route(placed: Placement, flow: number, target: number): Point[] {
  const { ordering, x, height } = placed;
  let spot =
    target !== NOTHING
      ? (placed.spotOf.get(target) ?? 0)
      : (ordering.layers.at(-1)?.find((at) => ordering.spots[at]?.flow === flow) ?? 0);
  const way: Point[] = target === NOTHING ? [[x[spot] ?? 0, height]] : into(placed, flow, target);
  for (
    let upper = placed.above.get(pair(flow, spot));
    upper !== undefined;
    upper = placed.above.get(pair(flow, spot))
  ) {
    way.push(...passing(placed, flow, upper));
    spot = upper;
  }
  return way.reverse();
}

/** The way of a loop: out at the bottom, up beside the layers, in at the top. */
export function wayBack(placed: Placement, lane: Lane): Point[] {
  const source = placed.ordering.flows[lane.flow]?.source ?? NOTHING;
  const out = passing(placed, lane.flow, placed.spotOf.get(source) ?? 0).reverse();
  const inward = into(placed, lane.flow, lane.target).reverse();
  const [rise, beside] = [ARROW + RISE * lane.number, placed.lanes.get(lane) ?? 0];
  const [last, first] = [out.at(-1) ?? [0, 0], inward[0] ?? [0, 0]];
  const [below, above] = [last[1] + rise, first[1] - rise];
  return [...out, [last[0], below], [beside, below], [beside, above], [first[0], above], ...inward];
}

/** From the top of a child up to the top of its layer. */
function into(placed: Placement, flow: number, child: number): Point[] {
  const x = placed.arrivals.get(pair(flow, child)) ?? 0;
  return [
    [x, cornerOf(placed, child)[1]],
    [x, placed.bands[layerOf(placed, child)]?.[0] ?? 0],
  ];
}

/** The segment of a way in the layer of a spot, upwards. */
function passing(placed: Placement, flow: number, spot: number): Point[] {
  const { child, layer } = placed.ordering.spots[spot] ?? { child: NOTHING, layer: 0 };
  const [top, bottom] = placed.bands[layer] ?? [0, 0];
  if (child !== NOTHING) {
    const x = placed.departures.get(flow) ?? 0;
    return [
      [x, bottom],
      [x, cornerOf(placed, child)[1] + placed.extents(child).height],
    ];
  }
  const x = placed.x[spot] ?? 0;
  return [
    [x, bottom + (layer === 0 ? placed.frame.titleHeight : 0)],
    [x, top],
  ];
}
