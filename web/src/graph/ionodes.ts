/** The inputs and outputs of the group that was entered, as nodes above and below it. */

import { type Extent, NO_PORTS } from "./layoutx";
import { NOTHING, type Ordering, type Port } from "./order";

const IO_NODE = { height: 22, narrowest: 56, letter: 7.2, margin: 18, longest: 26 };

/** An input or output of the group that was entered. */
export interface IoNode {
  readonly port: Port;
  readonly isInput: boolean;
}

export function ioNodesOf(inner: Ordering | undefined): IoNode[] {
  const [first, last] = [0, (inner?.layers.length ?? 1) - 1];
  return [
    ...inOrder(inner?.inputs ?? [], inner, first).map((port) => ({ port, isInput: true })),
    ...inOrder(inner?.outputs ?? [], inner, last).map((port) => ({ port, isInput: false })),
  ];
}

export function ioNodeExtent({ port }: IoNode): Extent {
  const letters = Math.min(Math.max(port.name.length, port.shape.length), IO_NODE.longest);
  return {
    width: Math.max(IO_NODE.narrowest, letters * IO_NODE.letter + IO_NODE.margin),
    height: port.shape === "" ? IO_NODE.height : IO_NODE.height + 12,
    entries: NO_PORTS,
    exits: NO_PORTS,
  };
}

/** The order of a group between its input and output nodes, whose numbers begin at `base`. */
export function around(root: number, ioNodes: readonly IoNode[], base: number): Ordering {
  const inputs = ioNodes.flatMap((ioNode, at) => (ioNode.isInput ? [at] : []));
  const outputs = ioNodes.flatMap((ioNode, at) => (ioNode.isInput ? [] : [at]));
  const layers = [inputs, [ioNodes.length], outputs].filter((layer) => layer.length > 0);
  const middle = inputs.length > 0 ? 1 : 0;
  const layerOf = (at: number) => (at === ioNodes.length ? middle : ioNodes[at]?.isInput ? 0 : middle + 1);
  const wired = ioNodes.flatMap((ioNode, at) => (ioNode.port.tensor === NOTHING ? [] : [{ ioNode, at }]));
  return {
    group: NOTHING,
    flows: wired.map(({ ioNode, at }) => ({
      tensor: at,
      source: ioNode.isInput ? base + at : root,
      leaves: false,
      outOf: ioNode.isInput ? NOTHING : ioNode.port.tensor,
    })),
    targets: wired.map(({ ioNode, at }, flow) => ({
      flow,
      child: ioNode.isInput ? root : base + at,
      into: ioNode.isInput ? ioNode.port.tensor : NOTHING,
    })),
    spots: [...ioNodes.map((_, at) => base + at), root].map((child, at) => ({
      layer: layerOf(at),
      child,
      flow: NOTHING,
    })),
    links: wired.map(({ ioNode, at }, flow) => ({
      upper: ioNode.isInput ? at : ioNodes.length,
      lower: ioNode.isInput ? ioNodes.length : at,
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
    const index = tensors.indexOf(port.tensor);
    return index < 0 || port.tensor === NOTHING ? tensors.length : index;
  };
  return [...ports].sort((a, b) => at(a) - at(b));
}
