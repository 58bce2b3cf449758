/** Which curves of metrics are drawn, and how they differ. */

const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
/** As many curves as there are colors. */
const MOST_CURVES = 8;

/** The requested types; without a request as many as can be distinguished, spread over all, with the selected one. */
export function typesShown(
  types: readonly string[],
  requested: readonly string[],
  runs: number,
  chosen: string | null,
): string[] {
  const there = requested.filter((type) => types.includes(type));
  if (there.length > 0) return there;
  const room = Math.max(Math.floor(MOST_CURVES / Math.max(runs, 1)), 1);
  if (types.length <= room) return [...types];
  const places = Array.from({ length: room }, (_, at) =>
    room === 1 ? types.length - 1 : Math.round((at * (types.length - 1)) / (room - 1)),
  );
  const spread = places.flatMap((place) => types[place] ?? []);
  if (chosen === null || !types.includes(chosen) || spread.includes(chosen)) return spread;
  const far = (type: string) => Math.abs(types.indexOf(type) - types.indexOf(chosen));
  const nearest = spread.reduce((best, type) => (far(type) < far(best) ? type : best));
  return spread.map((type) => (type === nearest ? chosen : type));
}

export interface CurveLook {
  readonly color: string;
  readonly dash: readonly number[];
}

/** A color for each run and type; where there are too many, one for each type. The lines of other runs are dashed. */
export function curveLooks(
  runs: readonly string[],
  types: readonly string[],
  colors: readonly string[],
): (run: string, type: string) => CurveLook {
  const few = runs.length * types.length <= colors.length;
  return (run, type) => {
    const [row, column] = [Math.max(runs.indexOf(run), 0), Math.max(types.indexOf(type), 0)];
    const at = few ? row * types.length + column : types.length > 1 ? column : row;
    return { color: colors[at % colors.length] ?? "", dash: DASHES[row % DASHES.length] ?? [] };
  };
}
