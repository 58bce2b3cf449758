/** The order of one group, as the server decided it: unpacked from its columns. */

import type { GroupOrder } from "../wire.gen";

export const NOTHING = -1;

export interface Flow {
  readonly tensor: number;
  /** A child, or −1: through the top. */
  readonly source: number;
  readonly leaves: boolean;
  /** The tensor inside the source that it continues, or −1. */
  readonly outOf: number;
}

/** A place in a layer: a child, or a flow on its way. */
export interface Spot {
  readonly layer: number;
  readonly child: number;
  readonly flow: number;
}

export interface Link {
  readonly upper: number;
  readonly lower: number;
  readonly flow: number;
}

/** A way back beside the layers. */
export interface Lane {
  readonly flow: number;
  readonly target: number;
  readonly number: number;
}

export interface Target {
  readonly flow: number;
  readonly child: number;
  /** The tensor inside the target that continues the flow, or −1. */
  readonly into: number;
}

export interface Port {
  readonly name: string;
  readonly shape: string;
  readonly tensor: number;
}

export interface Ordering {
  readonly group: number;
  readonly flows: readonly Flow[];
  readonly targets: readonly Target[];
  readonly spots: readonly Spot[];
  readonly links: readonly Link[];
  readonly layers: readonly (readonly number[])[];
  readonly lanes: readonly Lane[];
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
}

export function unpacked(order: GroupOrder): Ordering {
  const layerOf = new Array<number>(order.spot_children.length).fill(0);
  const layers: number[][] = [];
  let at = 0;
  for (const size of order.layer_sizes) {
    const layer = order.layer_spots.slice(at, at + size);
    for (const spot of layer) layerOf[spot] = layers.length;
    layers.push(layer);
    at += size;
  }
  const pick = (column: readonly number[], place: number) => column[place] ?? NOTHING;
  return {
    group: order.group,
    flows: order.flow_tensors.map((tensor, i) => ({
      tensor,
      source: pick(order.flow_sources, i),
      leaves: order.flow_leaves[i] === 1,
      outOf: pick(order.flow_out_of, i),
    })),
    targets: order.target_flows.map((flow, i) => ({
      flow,
      child: pick(order.target_children, i),
      into: pick(order.target_into, i),
    })),
    spots: order.spot_children.map((child, i) => ({
      layer: layerOf[i] ?? 0,
      child,
      flow: pick(order.spot_flows, i),
    })),
    links: order.link_uppers.map((upper, i) => ({
      upper,
      lower: pick(order.link_lowers, i),
      flow: pick(order.link_flows, i),
    })),
    layers,
    lanes: order.lane_flows.map((flow, i) => ({
      flow,
      target: pick(order.lane_targets, i),
      number: pick(order.lane_numbers, i),
    })),
    inputs: ports(order.input_names, order.input_tensors),
    outputs: ports(order.output_names, order.output_tensors),
  };
}

function ports(names: readonly string[], tensors: readonly number[]): Port[] {
  return names.map((text, i) => {
    const [name = "", shape = ""] = text.split("\t");
    return { name, shape, tensor: tensors[i] ?? NOTHING };
  });
}
