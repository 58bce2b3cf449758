/** The steps that the crosshair can stand at: recorded steps, those of the view, and those of traces. */

import { type Columns, lastUntil, nearest } from "./charts/scale";
import type { PageState } from "./pagestate.svelte";

/** The columns of each plot, by its element. */
const READ = new WeakMap<Element, readonly Columns[]>();

/** Register the columns of a plot, so that the pointer snaps to its steps. */
export function reads(plot: Element, columns: readonly Columns[]) {
  READ.set(plot, columns);
  return { update: (next: readonly Columns[]) => READ.set(plot, next) };
}

/** The step of the plot under the pointer that is nearest to a position on the axis. */
export function snapped(page: PageState, step: number, plot: Element | null = null): number | null {
  const { metric, span, width } = page;
  if (page.steps !== null) return page.steps[nearest(page.steps, step)] ?? null;
  const steps = recordedIn(page);
  const own = (plot && READ.get(plot)) ?? [];
  const dense =
    metric !== null && (steps === undefined || metric.last_steps.length > 2 * steps.length)
      ? metric.last_steps
      : steps;
  const among = own.length > 0 ? own.map(({ last_steps }) => last_steps).reduce(together) : dense;
  if (among === undefined) return null;
  const traced = tracedIn(page);
  const near = traced[nearest(traced, step)];
  // Columns are no wider than a pixel: the pointer could not hit a step between the ends of two.
  if (near !== undefined && Math.abs(near - step) * width <= span.max - span.min) return near;
  const all = together(among, traced);
  const snap = all[nearest(all, step)] ?? null;
  // A plot has one more step on the left: the crosshair stays inside the visible span.
  return snap !== null && snap < span.min ? Math.ceil(Math.max(step, span.min)) : snap;
}

/** Pin the crosshair to the neighboring step. */
export function walk(page: PageState, by: number): void {
  const recorded = page.steps ?? recordedIn(page)?.filter((step) => step >= page.span.min);
  const steps = recorded && together(recorded, tracedIn(page));
  if (steps === undefined || steps.length === 0) return;
  // Without a crosshair the first key sets it to the last step, which a view with steps of its own shows already.
  const unset = steps.length - 1 - (page.steps === null ? by : 0);
  const at = lastUntil(steps, page.step ?? 0);
  // From between two steps, the first key leads to one of the two.
  const from = page.step === null ? unset : by < 0 && steps[at] !== page.step ? at + 1 : at;
  const to = Math.min(Math.max(from + by, 0), steps.length - 1);
  page.hover = null;
  page.select({ step: steps[to] ?? null });
}

function recordedIn({ heatSteps, histogram, metric }: PageState): Float64Array | undefined {
  return heatSteps ?? histogram.value?.last_steps ?? metric?.last_steps;
}

/** The visible steps of traces, in the view of traces: a column of several steps knows only its last one. */
function tracedIn({ selection, tracesOfRun, span }: PageState): Float64Array {
  const shown = selection.view === "traces" ? tracesOfRun : [];
  const steps = shown.flatMap(({ step }) =>
    step !== null && step >= span.min && step <= span.max ? [step] : [],
  );
  return Float64Array.from(steps).sort();
}

function together(steps: Float64Array, more: Float64Array): Float64Array {
  return more.length === 0 ? steps : Float64Array.from(new Set([...steps, ...more])).sort();
}
