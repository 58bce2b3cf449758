/** Steps and values → pixels, and back. */

/** Room to the left and right of every plot: the same everywhere, so that one crosshair fits all. */
export const LEFT = 66;
export const RIGHT = 54;

export interface Span {
  readonly min: number;
  readonly max: number;
}

export function xOf(step: number, span: Span, width: number): number {
  return ((step - span.min) / (span.max - span.min)) * width;
}

export function stepAt(x: number, span: Span, width: number): number {
  return span.min + (x / width) * (span.max - span.min);
}

/** Place of a value among edges that are drawn equally far apart: 0 at the first, bins at the last; clamped. */
export function placeOf(value: number, edges: Float64Array): number {
  const bins = edges.length - 1;
  if (!(value > (edges[0] ?? 0))) return 0;
  if (value >= (edges[bins] ?? 0)) return bins;
  let [low, high] = [0, bins];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((edges[middle] ?? 0) <= value) low = middle;
    else high = middle;
  }
  const [below, above] = [edges[low] ?? 0, edges[high] ?? 0];
  return low + (value - below) / (above - below);
}

/** Index of the column nearest to a step, or −1 where there is none. Steps ascend. */
export function nearest(steps: Float64Array, step: number): number {
  if (steps.length === 0) return -1;
  let [low, high] = [0, steps.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((steps[middle] ?? 0) <= step) low = middle;
    else high = middle;
  }
  return Math.abs((steps[high] ?? 0) - step) < Math.abs((steps[low] ?? 0) - step) ? high : low;
}

/** Index of the last column that begins at or before a step, −1 where there is none. Steps ascend. */
export function lastUntil(firstSteps: Float64Array, step: number): number {
  let [low, high] = [0, firstSteps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((firstSteps[middle] ?? 0) <= step) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The columns of a view: the steps that each one holds. */
export interface Columns {
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
}

/**
 * What every part of the page shows of a crosshair: the column with the last recorded step at or before it, the first
 * column before that; −1 if there is none. The server answers `step=` by the same rule (`rows.at_or_before`).
 */
export function columnAt({ first_steps }: Columns, step: number): number {
  return Math.min(Math.max(lastUntil(first_steps, step), 0), first_steps.length - 1);
}

/** The step that a plot reads at a crosshair, where it draws the line. */
export function readBy(columns: Columns | undefined, step: number | null): number | null {
  if (columns === undefined || step === null) return step;
  const at = columnAt(columns, step);
  return Math.min(Math.max(step, columns.first_steps[at] ?? step), columns.last_steps[at] ?? step);
}

/** The position of that line as a share of the plot's width; far outside where the step is not visible. */
export function crossing(step: number | null, span: Span): number | null {
  return step === null ? null : step < span.min || step > span.max ? -99 : xOf(step, span, 1);
}

/** Round steps to label, about one per 70 pixels. */
export function stepTicks(span: Span, width: number): number[] {
  const rough = Math.max((span.max - span.min) / Math.max(width / 70, 1), 1);
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const spacing = magnitude * ([1, 2, 5, 10].find((factor) => factor * magnitude >= rough * 0.999) ?? 10);
  const ticks: number[] = [];
  for (let tick = Math.max(Math.ceil(span.min / spacing), 0) * spacing; tick <= span.max; tick += spacing)
    ticks.push(tick);
  return ticks;
}

/** Powers of ten to label on a logarithmic axis, and numbers between them where there are few powers. */
export function logTicks(span: Span, most: number): number[] {
  const ticks = decades(span, most);
  if (ticks.length > 2 || span.max > 10 * span.min) return ticks;
  const digits = Math.floor(Math.log10((span.max - span.min) / 3));
  const spacing = Number(`1e${digits}`);
  const [first, last] = [Math.ceil(span.min / spacing), Math.floor(span.max / spacing)];
  const every = [1, 2, 5, 10].find((step) => (last - first) / step < Math.max(most, 5)) ?? 10; // two at least
  const whole = Array.from({ length: last - first + 1 }, (_, at) => first + at).filter(
    (at) => at % every === 0,
  );
  return whole.map((at) => Number(`${at}e${digits}`));
}

function decades(span: Span, most: number): number[] {
  const first = Math.ceil(Math.log10(span.min) - 1e-9);
  const last = Math.floor(Math.log10(span.max) + 1e-9);
  const factors = last - first >= 2 ? [1] : [1, 2, 5];
  const every = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks: number[] = [];
  for (let decade = first - 1; decade <= last; decade++) {
    if (factors.length === 1 && (decade - first) % every !== 0) continue;
    for (const factor of factors) {
      const tick = Number(`${factor}e${decade}`);
      if (tick >= span.min && tick <= span.max) ticks.push(tick);
    }
  }
  return ticks;
}
