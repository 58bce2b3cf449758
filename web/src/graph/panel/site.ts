/** The tensors that a panel can show: inputs and outputs of a call, and parameters of its module. */

import { distinctKinds, longKind } from "../../format";
import { contextAmong, contextsOf, type Selection } from "../../selection";
import type { SeriesEntry } from "../../wire.gen";

const GRADIENT: Record<string, string> = {
  output: "output_grad",
  input: "input_grad",
  tensor: "tensor_grad",
  weight: "weight_grad",
};
const OF_PARAMETERS = new Set(["weight", "weight_grad", "update", "optimizer", "buffer"]);

/** One tensor, with its gradient where that was recorded. */
export interface Choice {
  readonly name: string;
  readonly text: string;
  readonly description: string;
  readonly value: SeriesEntry;
  readonly gradient: SeriesEntry | null;
}

export function gradientKind(kind: string): string | null {
  return GRADIENT[kind] ?? null;
}

/** Choices of a site in the order in which kinds are always shown: its own tensors, then parameters of its module. */
export function choicesOf(
  series: readonly SeriesEntry[],
  site: string,
  { mode, rank, context }: Pick<Selection, "mode" | "rank" | "context">,
): Choice[] {
  const agreeing = series.filter((entry) => entry.mode === (mode ?? "train") && entry.rank === rank);
  const of = agreeing.length > 0 ? agreeing : series;
  const own = inContext(
    of.filter((entry) => entry.site === site),
    context,
  );
  const parameters = of.filter((entry) => OF_PARAMETERS.has(entry.kind));
  const ownedBy = (path: string) => parameters.filter((entry) => ownerOf(entry.site) === path);
  const exact = ownedBy(site);
  // The second call is `fc#2`, but a module may be called that as well.
  const within = exact.length > 0 ? exact : ownedBy(site.replace(/#\d+$/, ""));
  const gradients = new Set(Object.values(GRADIENT));
  const choices: Choice[] = [];
  for (const among of [own, within])
    for (const kind of distinctKinds(among.map((entry) => entry.kind))) {
      if (gradients.has(kind) && among.some((entry) => GRADIENT[entry.kind] === kind)) continue;
      const seen = new Set<string>();
      for (const value of among.filter((entry) => entry.kind === kind)) {
        const name = `${value.site} ${kind} ${value.port}`;
        if (seen.has(name)) continue;
        seen.add(name);
        choices.push({ name, ...words(value, site), value, gradient: partner(among, value) });
      }
    }
  return choices;
}

/** The series of the requested context, or of the first one. */
export function inContext(series: readonly SeriesEntry[], wanted: string | null): SeriesEntry[] {
  const context = contextAmong(contextsOf(series), wanted);
  return series.filter((entry) => entry.context === context);
}

function words(value: SeriesEntry, site: string): { text: string; description: string } {
  const description = `${longKind(value.kind)} ${value.port} of ${value.site}`;
  const isMain = /\.0$/.test(value.port) || value.port === value.kind;
  if (value.site === site) return { text: isMain ? value.kind : `${value.kind} ${value.port}`, description };
  const last = value.site.split(".").at(-1) ?? value.site;
  const what = value.kind === "weight" ? "" : value.kind === "optimizer" ? value.port : value.kind;
  return { text: `${last} ${what}`.trim(), description };
}

function ownerOf(site: string): string {
  const at = site.lastIndexOf(".");
  return at < 0 ? "(model)" : site.slice(0, at);
}

function partner(among: readonly SeriesEntry[], value: SeriesEntry): SeriesEntry | null {
  const kind = GRADIENT[value.kind];
  const gradients = among.filter((entry) => entry.kind === kind && entry.site === value.site);
  return gradients.find((entry) => placeIn(entry.port) === placeIn(value.port)) ?? gradients[0] ?? null;
}

/** Which of several tensors a port is: the same for a value and its gradient. */
export function placeIn(port: string): string {
  return port.replace(/^[^.]*/, "");
}
