/** Evaluations: how many of their forward passes were recorded. */

import type { EventEntry, SeriesEntry } from "./wire.gen";

const TEXT = /^(\d+) of (\d+) forwards of (.*?)(?: in context (.*))?$/;

/** The recorded forward passes of the last evaluation at or before a step, for a series in evaluation mode. */
export function forwardsOf(
  events: readonly EventEntry[],
  series: Pick<SeriesEntry, "site" | "mode" | "context">,
  step: number,
): { text: string; whole: boolean } | null {
  if (series.mode !== "eval") return null;
  let last: { step: number; read: string; all: string } | null = null;
  for (const event of events) {
    if (event.level !== "evaluation" || event.step > step || (last !== null && event.step < last.step))
      continue;
    const [, read, all, root, context = ""] = TEXT.exec(event.text) ?? [];
    if (read === undefined || all === undefined || root === undefined || context !== series.context) continue;
    if (root === "(model)" || series.site === root || series.site.startsWith(`${root}.`))
      last = { step: event.step, read, all };
  }
  return last && { text: `${last.read} of ${last.all} forwards`, whole: last.read === last.all };
}
