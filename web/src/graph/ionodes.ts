/** The inputs and outputs of the group that was entered: pills above and below it. */

import { type Extent, NO_PORTS } from "./layoutx";
import { NOTHING, type Ordering, type Port } from "./order";

const PILL = { height: 22, narrowest: 56, letter: 7.2, margin: 18, longest: 26 };

/** An input or output of the group that was entered. */
export interface Pill {
  readonly port: Port;
  readonly isInput: boolean;
}

export function pillsOf(inner: Ordering | undefined): Pill[] {
  const [first, last] = [0, (inner?.layers.length ?? 1) - 1];
  return [
    ...inOrder(inner?.inputs ?? [], inner, first).map((port) => ({ port, isInput: true })),
    ...inOrder(inner?.outputs ?? [], inner, last).map((port) => ({ port, isInput: false })),
  ];
}

export function pillExtent({ port }: Pill): Extent {
  const letters = Math.min(Math.max(port.name.length, port.shape.length), PILL.longest);
  return {
    width: Math.max(PILL.narrowest, letters * PILL.letter + PILL.margin),
    height: port.shape === "" ? PILL.height : PILL.height + 12,
    entries: NO_PORTS,
    exits: NO_PORTS,
  };
}

/** The order of a group between its pills, whose numbers begin at `base`. */
export function around(root: number, pills: readonly Pill[], base: number): Ordering {
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
