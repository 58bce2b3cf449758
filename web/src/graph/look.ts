/** Colors of the graph, read from the style sheet so that a theme is defined once. */

export interface Look {
  readonly text: string;
  readonly muted: string;
  readonly edge: string;
  readonly line: string;
  readonly accent: string;
  readonly warn: string;
  readonly ground: string;
  readonly node: string;
  readonly nodeEdge: string;
  readonly tensor: string;
  readonly groups: readonly [string, string];
  readonly port: string;
  readonly font: string;
}

export function lookOf(): Look {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  const isLight = document.documentElement.dataset.theme === "light";
  return {
    text: of("--text"),
    muted: of("--muted"),
    edge: of("--edge"),
    line: isLight ? "#7b8794" : "#7d8b9b",
    accent: of("--accent"),
    warn: of("--warn"),
    ground: of("--ground"),
    node: isLight ? "#ffffff" : "#222c38",
    nodeEdge: isLight ? "#8d99a6" : "#54647a",
    tensor: isLight ? "#fdf3d3" : "#3d3717",
    groups: isLight ? ["#f7f9fb", "#e9eef3"] : ["#131a22", "#19222c"],
    port: of("--accent-soft"),
    font: of("--sans"),
  };
}
