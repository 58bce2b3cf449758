/** The graph of a trace as far as it was sent: modules at first, operations when the module around them is opened. */

import { NOTHING } from "../graph/order";
import { Scene } from "../graph/scene";
import type { TraceGroups, TraceParts, TracePicture } from "../wire.gen";

const HEIGHT = 38;
const SENT = ["parents", "roles", "names", "details", "widths", "title_widths", "sites", "facts"] as const;

export class TraceGraph {
  readonly scene: Scene;
  /** The first operation of each node; of a module the one whose tensor it gives. */
  readonly operation = new Map<number, number>();
  readonly #columns;

  constructor(picture: TracePicture) {
    const all = <T>(value: T): T[] => new Array<T>(picture.count).fill(value);
    this.#columns = {
      parents: all(NOTHING),
      roles: all(""),
      names: all(""),
      details: all(""),
      widths: all(0),
      title_widths: all(0),
      sites: all(""),
      facts: all(""),
    };
    this.#write(picture.modules);
    this.#write(picture.inside.operations);
    this.scene = new Scene(
      {
        ...this.#columns,
        title: picture.title,
        note: "",
        heights: all(HEIGHT),
        times: all(1),
        opened: picture.opened,
        groups: picture.inside.groups,
      },
      new Set(picture.modules.parts),
    );
  }

  /** What came when groups were opened; to get it twice does no harm. */
  add({ operations, groups }: TraceGroups): void {
    const unknown = operations.parts.filter((node) => !this.operation.has(node));
    this.#write(operations);
    this.scene.know(unknown);
    this.scene.add(groups);
  }

  #write(sent: TraceParts): void {
    for (const name of SENT) {
      const column: (string | number)[] = this.#columns[name];
      sent.parts.forEach((node, at) => {
        column[node] = sent[name][at] ?? "";
      });
    }
    sent.parts.forEach((node, at) => {
      this.operation.set(node, sent.operations[at] ?? 0);
    });
  }
}
