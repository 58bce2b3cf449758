/** Merges have no site: they are named by the group they are in, and counted there. */

import type { Scene } from "./scene";

export function mergeKey(scene: Scene, merge: number): string {
  const group = scene.parent(merge);
  return `${mergesIn(scene, group).indexOf(merge)} ${scene.keys[group] ?? ""}`;
}

export function mergeNamed(scene: Scene, key: string): number | null {
  const [, number = "", group = ""] = /^(\d+) (.*)$/s.exec(key) ?? [];
  const part = scene.named(group);
  return part === null ? null : (mergesIn(scene, part)[Number(number)] ?? null);
}

function mergesIn(scene: Scene, group: number): number[] {
  return (scene.children[group] ?? []).filter((part) => scene.graph.roles[part] === "merge");
}
