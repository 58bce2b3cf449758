/** Ink that can be read on any colours. */

/** The rim that letters need where some of the colours want the other ink. */
export function rimOn(fills: readonly string[], ink: string): string | null {
  return fills.length < 2 ? null : (fills.map((fill) => inkOn([fill])).find((each) => each !== ink) ?? null);
}

/** Black or white, whichever reads better on the colours. */
export function inkOn(fills: readonly string[]): string {
  let light = 0;
  for (const fill of fills) {
    const [red = 0, green = 0, blue = 0] = (fill.match(/[\d.]+/g) ?? []).map(Number);
    light += (0.299 * red + 0.587 * green + 0.114 * blue) / fills.length;
  }
  return light > 140 ? "#000000" : "#ffffff";
}
