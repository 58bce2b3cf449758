/** Numbers of parts → colours. */

import { css, type Palette } from "../charts/colours";
import { painter, type Shading } from "../charts/matrix";
import { columnAt } from "../charts/scale";
import { valueColumn } from "../rows";
import type { HeatMapView, PartNumbers } from "../wire.gen";

/** Of parts of which nothing was recorded. */
export const MISSING = { dark: "rgb(50 58 68)", light: "rgb(176 184 194)" } as const;

/** The colour of each part that has a number. */
export function coloured(
  numbers: PartNumbers,
  shading: Shading | null,
  colours: Palette,
): Map<number, string> {
  const paint = painter(shading, colours);
  return new Map(
    Array.from(numbers.parts, (part, at) => [part, css(paint(numbers.values[at] ?? Number.NaN))]),
  );
}

/** The same numbers at another step, of which a heat map holds the cells; what it lacks stays as it is. */
export function numbersAt(numbers: PartNumbers, heat: HeatMapView, step: number): PartNumbers {
  const columns = heat.last_steps.length;
  const at = columnAt(heat, step);
  const rows = new Map<string, number>();
  heat.sites.forEach((site, row) => {
    if ((heat.own[row] ?? -1) >= 0) rows.set(`${site}\n${heat.ports[row]}`, heat.own[row] ?? -1);
  });
  const [values, steps] = [numbers.values.slice(), numbers.steps.slice()];
  numbers.sites.forEach((site, part) => {
    const row = rows.get(`${site}\n${numbers.ports[part]}`);
    if (row === undefined || at < 0) return;
    const column = valueColumn(heat, row, at);
    values[part] = heat.cells[row * columns + column] ?? Number.NaN;
    steps[part] = heat.last_steps[column] ?? 0;
  });
  return { ...numbers, values, steps, step: heat.last_steps[at] ?? numbers.step };
}
