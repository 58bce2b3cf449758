/** Merges have no site: they are named by the group they are in, and counted there. */

import type { Scene } from "./scene";

export function mergeKey(scene: Scene, merge: number): string {
  const group = scene.parent(merge);
  return `${mergesIn(scene, group).indexOf(merge)} ${scene.keys[group] ?? ""}`;
}

export function mergeNamed(scene: Scene, key: string): number | null {
  const [, number = "", group = ""] = /^(\d+) (.*)$/s.exec(key) ?? [];
  const node = scene.named(group);
  return node === null ? null : (mergesIn(scene, node)[Number(number)] ?? null);
}

function mergesIn(scene: Scene, group: number): number[] {
  return (scene.children[group] ?? []).filter((node) => scene.graph.roles[node] === "merge");
}
