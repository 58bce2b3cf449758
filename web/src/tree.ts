/** Series → the tree of sites that the page lists. */

import type { SeriesEntry } from "./wire.gen";

export interface SiteNode {
  /** What stands in the list: the last part of the path, or several where nothing branches. */
  readonly label: string;
  readonly path: string;
  readonly series: readonly SeriesEntry[];
  readonly children: readonly SiteNode[];
}

export interface Row {
  readonly node: SiteNode;
  readonly depth: number;
  readonly open: boolean;
}

interface Draft {
  path: string;
  label: string;
  series: SeriesEntry[];
  children: Map<string, Draft>;
}

function draft(path: string, label: string): Draft {
  return { path, label, series: [], children: new Map() };
}

/** Top nodes of the tree; sites stand in the order in which they first appeared. */
export function treeOf(series: readonly SeriesEntry[]): readonly SiteNode[] {
  const root = draft("", "");
  for (const entry of series) {
    let node = root;
    let path = "";
    for (const part of entry.site.split(".")) {
      path = path === "" ? part : `${path}.${part}`;
      let child = node.children.get(part);
      if (child === undefined) {
        child = draft(path, part);
        node.children.set(part, child);
      }
      node = child;
    }
    node.series.push(entry);
  }
  return [...root.children.values()].map(joined);
}

/** A chain of nodes without series of their own and without branches is one node. */
function joined(node: Draft): SiteNode {
  let [last, label] = [node, node.label];
  while (last.series.length === 0 && last.children.size === 1) {
    for (const only of last.children.values()) last = only;
    label = `${label}.${last.label}`;
  }
  return { label, path: last.path, series: last.series, children: [...last.children.values()].map(joined) };
}

/** The rows that are listed: the open part of the tree, or every site whose path matches what is searched for. */
export function rowsOf(tree: readonly SiteNode[], closed: ReadonlySet<string>, search: string): Row[] {
  const rows: Row[] = [];
  const matches = search === "" ? null : matcher(search);
  const walk = (node: SiteNode, depth: number): void => {
    const open = !closed.has(node.path);
    if (matches === null) rows.push({ node, depth, open });
    else if (node.series.length > 0 && matches(node)) rows.push({ node, depth: 0, open: false });
    if (matches !== null || open) for (const child of node.children) walk(child, depth + 1);
  };
  for (const node of tree) walk(node, 0);
  return rows;
}

function matcher(search: string): (node: SiteNode) => boolean {
  const matches = pathMatcher(search);
  return (node) =>
    matches(
      node.path,
      node.series.map((entry) => entry.kind),
    );
}

/** All words must occur in the path or be one of its kinds; `*` stands for anything. */
export function pathMatcher(search: string): (path: string, kinds: readonly string[]) => boolean {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => new RegExp(word.split("*").map(escaped).join(".*")));
  return (path, kinds) =>
    tests.every((test, at) => test.test(path.toLowerCase()) || kinds.includes(words[at] ?? ""));
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

/** How many chips fit side by side into a width in pixels, with room for a "+3" if not all do. */
export function fitting(labels: readonly string[], pixels: number): number {
  const MORE = 22;
  let used = 0;
  for (const [at, label] of labels.entries()) {
    used += 15 + 6.4 * label.length;
    const last = at === labels.length - 1;
    if (used > pixels - (last ? 0 : MORE)) return at;
  }
  return labels.length;
}
