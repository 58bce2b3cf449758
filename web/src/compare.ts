/** Which runs are compared. */

import type { Selection } from "./selection";

/** More colors could not be distinguished. */
export const MOST_RUNS = 8;

/** The selected run, then the runs that are compared with it. */
export function comparedRuns(selection: Pick<Selection, "run" | "runs">): string[] {
  const names = selection.run === null ? selection.runs : [selection.run, ...selection.runs];
  return [...new Set(names)].slice(0, MOST_RUNS);
}
