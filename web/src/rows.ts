/** The rows of a heat map that are listed: the open part of the tree, or every row that matches a search. */

import { pathMatcher } from "./tree";
import type { HeatMapView } from "./wire.gen";

export interface HeatRow {
  /** Place in the view. */
  readonly at: number;
  /** The row of cells that is drawn, −1 for a heading. */
  readonly cells: number;
  readonly group: boolean;
  readonly open: boolean;
  readonly depth: number;
}

/** The key of a row, which stays the same when the view is requested again. */
export function rowKey(view: HeatMapView, at: number): string {
  return `${view.sites[at]}|${view.ports[at]}|${view.inside[at] === 0 ? "" : "group"}`;
}

export function heatRows(
  view: HeatMapView,
  closed: ReadonlySet<string>,
  search: string,
  kind: string,
): HeatRow[] {
  const rows: HeatRow[] = [];
  const matches = search === "" ? null : pathMatcher(search);
  for (let at = 0; at < view.labels.length; at++) {
    const inside = view.inside[at] ?? 0;
    const own = view.own[at] ?? -1;
    const depth = view.depths[at] ?? 0;
    if (matches !== null) {
      if (own >= 0 && matches(view.sites[at] ?? "", [kind]))
        rows.push({ at, cells: own, group: false, open: false, depth: 0 });
      continue;
    }
    const group = inside > 0;
    const open = group && !closed.has(rowKey(view, at));
    rows.push({ at, cells: group && !open ? (view.whole[at] ?? -1) : own, group, open, depth });
    if (group && !open) at += inside;
  }
  return rows;
}

/** The column of a row's last value at or before a column, else of its first one; the column itself where it has none. */
export function valueColumn(view: HeatMapView, row: number, at: number): number {
  const columns = view.last_steps.length;
  const has = (column: number) => view.cells[row * columns + column] !== Number.NEGATIVE_INFINITY;
  for (let column = at; column >= 0; column--) if (has(column)) return column;
  for (let column = at + 1; column < columns; column++) if (has(column)) return column;
  return at;
}

/** Keys of the groups that are closed to show the tree down to a depth. */
export function closedBelow(view: HeatMapView, depth: number): string[] {
  const keys: string[] = [];
  for (let at = 0; at < view.labels.length; at++)
    if ((view.inside[at] ?? 0) > 0 && (view.depths[at] ?? 0) >= depth) keys.push(rowKey(view, at));
  return keys;
}

/** What a row is called, and how deep that stands. */
export interface RowName {
  readonly text: string;
  readonly depth: number;
}

/** The names of the rows with a label; the names of those around it that have none are part of it. */
export function namesOf(
  view: HeatMapView,
  rows: readonly HeatRow[],
  shown: ReadonlySet<number>,
): ReadonlyMap<number, RowName> {
  const names = new Map<number, RowName>();
  const around: number[] = [];
  rows.forEach((row, index) => {
    while (around.length > 0 && (rows[around.at(-1) ?? 0]?.depth ?? 0) >= row.depth) around.pop();
    if (shown.has(index)) {
      const unnamed = around.slice(
        1 + Math.max(-1, ...around.map((outer, at) => (shown.has(outer) ? at : -1))),
      );
      const text = [...unnamed, index].map((each) => view.labels[rows[each]?.at ?? 0] ?? "").join(".");
      names.set(index, { text, depth: rows[unnamed[0] ?? index]?.depth ?? 0 });
    }
    if (row.group) around.push(index);
  });
  return names;
}

/** Which rows are labeled where there is less than a line for each: one, then outer ones, groups before others. */
export function labeled(
  rows: readonly HeatRow[],
  rowHeight: number,
  line: number,
  before: number,
): ReadonlySet<number> {
  const all = rows.map((_, index) => index);
  if (rowHeight >= line) return new Set(all);
  const apart = Math.ceil(line / rowHeight);
  const occupied = new Uint8Array(rows.length);
  const chosen = new Set<number>();
  const rank = (index: number) => {
    if (index === before) return -1;
    if (index === rows.length - 1) return 0.5; // what ends the picture is named, if only with its groups
    return 2 * (rows[index]?.depth ?? 0) + (rows[index]?.group ? 0 : 1);
  };
  for (const index of all.sort((a, b) => rank(a) - rank(b) || a - b)) {
    if (occupied[index] === 1) continue;
    chosen.add(index);
    occupied.fill(1, Math.max(index - apart + 1, 0), index + apart);
  }
  return chosen;
}
