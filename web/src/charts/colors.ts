/** Colors of the canvases, read from the style sheet so that a theme is defined once. */

export interface Palette {
  readonly text: string;
  readonly muted: string;
  readonly grid: string;
  readonly metric: string;
  readonly trace: string;
  readonly line: string;
  readonly halo: string;
  readonly ground: string;
  readonly bad: string;
  readonly warn: string;
  readonly infinite: string;
  readonly font: string;
  readonly ramp: Uint32Array;
  /** From much less over equal, in the middle, to much more. */
  readonly diverging: Uint32Array;
  /** One for each of several runs. */
  readonly runs: readonly string[];
}

type Rgb = readonly [number, number, number];

/** Sequential, even in lightness, distinct with any kind of color vision. The end that means "much" is far from the ground. */
const DARK: readonly Rgb[] = [
  [34, 52, 92],
  [36, 80, 120],
  [33, 108, 135],
  [35, 137, 138],
  [54, 165, 127],
  [104, 190, 104],
  [170, 211, 84],
  [239, 229, 92],
];
const LIGHT: readonly Rgb[] = [
  [222, 235, 243],
  [189, 216, 232],
  [144, 193, 217],
  [95, 165, 202],
  [57, 132, 182],
  [36, 97, 154],
  [27, 64, 121],
  [20, 32, 80],
];

/** Blue and gold on both sides of what is near the ground: distinct with any kind of color vision. */
const DARK_DIVERGING: readonly Rgb[] = [
  [150, 214, 255],
  [52, 136, 214],
  [34, 78, 124],
  [30, 38, 48],
  [118, 78, 20],
  [216, 142, 32],
  [255, 220, 120],
];
const LIGHT_DIVERGING: readonly Rgb[] = [
  [8, 60, 120],
  [40, 115, 180],
  [150, 196, 226],
  [244, 244, 240],
  [236, 194, 100],
  [188, 124, 16],
  [108, 62, 0],
];
/** The palette of Okabe and Ito; yellow is too bright on white, and black too dark on black. */
const RUNS = {
  dark: ["#56b4e9", "#e69f00", "#2fbf8f", "#e58fc0", "#f0e442", "#ff7a45", "#b0a4ff", "#c9d1d9"],
  light: ["#0072b2", "#b86e00", "#00785a", "#b04a86", "#7a6f00", "#c23b14", "#5a4bc4", "#4a5563"],
};

export const RAMP_STEPS = 256;

function ramp(stops: readonly Rgb[]): Uint32Array {
  const colors = new Uint32Array(RAMP_STEPS);
  for (let i = 0; i < RAMP_STEPS; i++) {
    const at = (i / (RAMP_STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [a, b] = [stops[low] ?? [0, 0, 0], stops[low + 1] ?? [0, 0, 0]];
    const [red, green, blue] = [0, 1, 2].map((part) => {
      const from = a[part] ?? 0;
      return Math.round(from + (at - low) * ((b[part] ?? 0) - from));
    });
    colors[i] = (255 << 24) | ((blue ?? 0) << 16) | ((green ?? 0) << 8) | (red ?? 0);
  }
  return colors;
}

const RAMPS = { dark: ramp(DARK), light: ramp(LIGHT) };
const DIVERGING = { dark: ramp(DARK_DIVERGING), light: ramp(LIGHT_DIVERGING) };

const PALETTES: { dark?: Palette; light?: Palette } = {};

/** The colors of a theme; cached, because reading the style sheet makes the browser compute all styles. */
export function palette(theme: "dark" | "light"): Palette {
  if (document.documentElement.dataset.theme !== theme) return read(theme);
  PALETTES[theme] ??= read(theme);
  return PALETTES[theme];
}

function read(theme: "dark" | "light"): Palette {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  return {
    text: of("--text"),
    muted: of("--muted"),
    grid: of("--grid"),
    metric: of("--metric"),
    trace: of("--trace"),
    line: of("--line"),
    halo: of("--halo"),
    ground: of("--panel"),
    bad: of("--bad"),
    warn: of("--warn"),
    infinite: of("--infinite"),
    font: `11px ${of("--sans")}`,
    ramp: RAMPS[theme],
    diverging: DIVERGING[theme],
    runs: RUNS[theme],
  };
}

/** Colors of the ramp as a CSS gradient, for the legend. */
export function gradient(colors: Uint32Array): string {
  const stops = [0, 1, 2, 3, 4, 5, 6]
    .map((sixth) => sixth / 6)
    .map((at) => css(colors[Math.round(at * (RAMP_STEPS - 1))] ?? 0));
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

/** `#rrggbb` as the pixels of a canvas hold it. */
export function packed(color: string): number {
  const number = Number.parseInt(color.replace("#", ""), 16);
  return ((255 << 24) | ((number & 255) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

/** A packed color of a ramp, as CSS has it. */
export function css(color: number): string {
  return `rgb(${color & 255} ${(color >> 8) & 255} ${(color >> 16) & 255})`;
}
