/** The branches that meet in a merge, followed back to the calls they came from. */

import type { NestedGraph } from "../wire.gen";
import { type Flow, NOTHING, type Ordering } from "./order";

/** A branch of a merge: the output of a node, or the input of a call, which is also the output of a node. */
export interface Branch {
  readonly inputOf: number | null;
  /** Which input of the call, where that is known. */
  readonly port: string | null;
  readonly node: number | null;
}

export class Branches {
  constructor(
    readonly graph: NestedGraph,
    readonly orders: ReadonlyMap<number, Ordering>,
  ) {}

  /** Where the flows into a merge come from: calls, or the input of the call around it and the call that produced it. */
  into(merge: number): readonly Branch[] {
    const group = this.#parent(merge);
    const order = this.orders.get(group);
    const distinct = new Map<string, Branch>();
    for (const target of order?.targets ?? []) {
      if (target.child !== merge) continue;
      const flow = order?.flows[target.flow];
      if (flow === undefined) continue;
      const branches =
        this.graph.roles[flow.source] === "merge"
          ? this.into(flow.source)
          : [
              {
                inputOf: flow.source === NOTHING ? this.#call(group) : null,
                port: flow.source === NOTHING ? this.#port(group, flow.tensor) : null,
                node: this.#origin(group, flow),
              },
            ];
      for (const branch of branches) distinct.set(`${branch.inputOf} ${branch.port} ${branch.node}`, branch);
    }
    return [...distinct.values()];
  }

  /** The call that a group is, or that it is inside of. */
  #call(group: number): number {
    const isCall = this.graph.sites[group] !== "" || this.#parent(group) === NOTHING;
    return isCall ? group : this.#call(this.#parent(group));
  }

  /** The name of an input of the call that a group is, or is inside of. */
  #port(group: number, tensor: number): string | null {
    const own = this.orders.get(group)?.inputs.find((port) => port.tensor === tensor);
    if (own !== undefined || this.#call(group) === group) return own?.name ?? null;
    const target = this.orders
      .get(this.#parent(group))
      ?.targets.find(({ child, into }) => child === group && into === tensor);
    const flow = target === undefined ? undefined : this.orders.get(this.#parent(group))?.flows[target.flow];
    return flow?.source === NOTHING ? this.#port(this.#parent(group), flow.tensor) : null;
  }

  /** The node that produced the tensor of a flow; null where there are several, or it is unknown. */
  #origin(group: number, flow: Flow): number | null {
    if (flow.source === NOTHING) {
      const outer = this.orders.get(this.#parent(group));
      const target = outer?.targets.find(({ child, into }) => child === group && into === flow.tensor);
      const before = target === undefined ? undefined : outer?.flows[target.flow];
      return before === undefined ? null : this.#origin(this.#parent(group), before);
    }
    if (this.graph.roles[flow.source] === "merge") return null;
    if (this.graph.sites[flow.source] !== "") return flow.source;
    const inner = this.orders
      .get(flow.source)
      ?.flows.find(({ tensor, leaves }) => leaves && tensor === flow.outOf);
    return inner === undefined ? null : this.#origin(flow.source, inner);
  }

  #parent(node: number): number {
    return this.graph.parents[node] ?? NOTHING;
  }
}
