/** Numbers of nodes → colors. */

import { css, type Palette } from "../charts/colors";
import { painter, type Shading } from "../charts/heatmap";
import { columnAt, lastUntil } from "../charts/scale";
import { valueColumn } from "../rows";
import type { HeatMapView, PartNumbers } from "../wire.gen";

/** The color of nodes without recorded values. */
export const MISSING = { dark: "rgb(50 58 68)", light: "rgb(176 184 194)" } as const;

/** The color of each node that has a number. */
export function colored(numbers: PartNumbers, shading: Shading | null, colors: Palette): Map<number, string> {
  const paint = painter(shading, colors);
  return new Map(
    Array.from(numbers.parts, (node, at) => [node, css(paint(numbers.values[at] ?? Number.NaN))]),
  );
}

/** The numbers at another step, read from heat maps by context; a number that they do not have stays. */
export function numbersAt(
  numbers: PartNumbers,
  heats: readonly (readonly [context: string, view: HeatMapView])[],
  step: number,
): PartNumbers {
  const rows = new Map<string, readonly [HeatMapView, number]>();
  for (const [context, heat] of heats)
    heat.own.forEach((row, at) => {
      if (row >= 0) rows.set(`${context}\n${heat.sites[at]}\n${heat.ports[at]}`, [heat, row]);
    });
  const [values, steps] = [numbers.values.slice(), numbers.steps.slice()];
  numbers.sites.forEach((site, node) => {
    const context = numbers.contexts[node] ?? numbers.context;
    const [heat, row] = rows.get(`${context}\n${site}\n${numbers.ports[node]}`) ?? [];
    if (heat === undefined || row === undefined || heat.last_steps.length === 0) return;
    const column = valueColumn(heat, row, columnAt(heat, step));
    values[node] = heat.cells[row * heat.last_steps.length + column] ?? Number.NaN;
    steps[node] = heat.last_steps[column] ?? 0;
  });
  const known = Float64Array.from(new Set(steps)).sort();
  const last = known[Math.max(lastUntil(known, step), 0)];
  return { ...numbers, values, steps, step: last ?? numbers.step };
}
