import { describe, expect, it } from "vitest";
import golden from "../../../tests/golden/nested.json?raw";
import type { NestedGraph } from "../wire.gen";
import { flowsAt, jointsOf } from "./joints";
import { type Box, Scene } from "./scene";
import { hitAt, nextTo } from "./walk";

const GRAPH = JSON.parse(golden) as NestedGraph;
const at = (scene: Scene, key: string) => scene.named(key) ?? -1;

function opened(...keys: string[]): Scene {
  const scene = new Scene(GRAPH);
  scene.arrange(0, new Set(keys.map((key) => at(scene, key))));
  return scene;
}

function holds(outer: Box, inner: Box): boolean {
  return (
    inner.x >= outer.x &&
    inner.y >= outer.y &&
    inner.x + inner.width <= outer.x + outer.width + 0.01 &&
    inner.y + inner.height <= outer.y + outer.height + 0.01
  );
}

describe("a scene", () => {
  it("has every box within the open box around it", () => {
    const scene = opened("(model)", "repeat:blocks.0", "blocks.1", "blocks.2");
    for (const box of scene.boxes) {
      const around = scene.box(scene.parent(box.node));
      if (around !== null) expect(holds(around, box), scene.keys[box.node]).toBe(true);
    }
    expect(scene.box(at(scene, "blocks.1.norm"))).not.toBeNull();
    expect(scene.box(at(scene, "blocks.0.norm"))).toBeNull();
  });

  it("is the same again after a group was opened and closed", () => {
    const scene = opened("(model)");
    const before = JSON.stringify(scene.boxes);
    scene.arrange(0, new Set([0, at(scene, "repeat:blocks.0"), at(scene, "blocks.3")]));
    expect(JSON.stringify(scene.boxes)).not.toBe(before);
    scene.arrange(0, new Set([0]));
    expect(JSON.stringify(scene.boxes)).toBe(before);
  });

  it("continues every line at the border of an open group", () => {
    const scene = opened("(model)", "repeat:blocks.0", "blocks.0", "blocks.1", "blocks.2", "blocks.3");
    const starts = new Set<string>();
    const spot = (x: number, y: number) => `${x.toFixed(2)} ${y.toFixed(2)}`;
    for (const { box, lines } of scene.drawn)
      for (const { points } of lines)
        starts.add(spot(box.x + (points[0]?.[0] ?? 0), box.y + (points[0]?.[1] ?? 0)));
    for (const { box, lines } of scene.drawn)
      for (const { points, target } of lines) {
        const end = points.at(-1) ?? [0, 0];
        if (target >= 0 && scene.box(target)?.open)
          expect(starts.has(spot(box.x + end[0], box.y + end[1])), scene.keys[target]).toBe(true);
      }
  });

  it("knows all pieces of the flows of a node, also outside of the open group around it", () => {
    const scene = opened("(model)", "repeat:blocks.0", "blocks.1");
    const flows = [...flowsAt(scene.drawn, at(scene, "blocks.1.norm"))];
    expect(flows.some(({ target }) => target === at(scene, "blocks.1.norm"))).toBe(true);
    expect(flows.some(({ source }) => source === at(scene, "blocks.0"))).toBe(true);
    expect(flows.some(({ target }) => target === at(scene, "blocks.3"))).toBe(false);
    expect(jointsOf(scene.drawn).unsourced.size).toBe(0);
  });

  it("puts inputs and outputs of what was entered around it", () => {
    const scene = new Scene(GRAPH);
    const block = at(scene, "blocks.2");
    scene.arrange(block, new Set([0, block]));
    expect(scene.ioNodes.map(({ port, isInput }) => [port.name, port.shape, isInput])).toEqual([
      ["input.0", "8×16", true],
      ["output.0", "8×16", false],
    ]);
    expect(scene.box(at(scene, "embed"))).toBeNull();
  });

  it("places a group when its order comes later", () => {
    const whole = opened("(model)", "repeat:blocks.0");
    const scene = new Scene({ ...GRAPH, groups: GRAPH.groups.filter(({ group }) => group === 0) });
    const repeat = at(scene, "repeat:blocks.0");
    expect(scene.arrange(0, new Set([0, repeat]))).toEqual([repeat]);
    expect(scene.box(repeat)?.open).toBe(false);
    scene.add(GRAPH.groups.filter(({ group }) => group === repeat));
    expect(scene.arrange(0, new Set([0, repeat]))).toEqual([]);
    expect(scene.boxes).toEqual(whole.boxes);
  });

  it("says what is under the pointer, and what is next", () => {
    const scene = opened("(model)");
    const [embed, repeat] = [at(scene, "embed"), at(scene, "repeat:blocks.0")];
    const box = scene.box(embed);
    expect(hitAt(scene, (box?.x ?? 0) + 20, (box?.y ?? 0) + 20)).toEqual({ node: embed, onChevron: false });
    expect(nextTo(scene, embed, "ArrowDown")).toBe(repeat);
    expect(nextTo(scene, repeat, "ArrowUp")).toBe(embed);
  });

  it("knows the branches of a merge: the input of the call, and who gave it", () => {
    const scene = opened("(model)", "repeat:blocks.0", "blocks.0");
    const merge = scene.boxes.find(({ node }) => GRAPH.roles[node] === "merge")?.node ?? -1;
    expect(scene.sourcesOf(merge)).toEqual([
      { inputOf: at(scene, "blocks.0"), port: "input.0", node: at(scene, "embed") },
      { inputOf: null, port: null, node: at(scene, "blocks.0.mlp") },
    ]);
  });
});
