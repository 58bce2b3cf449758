/** The statistic and tensors of a heat map: the selected ones, where the run has them. */

import { LEFT } from "./charts/scale";
import { distinctKinds } from "./format";
import type { PageState } from "./pagestate.svelte";
import { contextAmong, contextsOf } from "./selection";

/** In pixels: labels need more room than numbers. */
const FOR_LABELS = 210;

export interface HeatChoice {
  readonly page: PageState;
  readonly kinds: readonly string[];
  readonly kind: string;
  readonly modes: readonly string[];
  readonly mode: string;
  readonly contexts: readonly string[];
  readonly context: string;
  /** The query of requests. */
  readonly query: string;
}

export function heatChoice(page: PageState): HeatChoice {
  // All plots leave room for the labels, so that one crosshair line fits all.
  $effect(() => {
    page.left = FOR_LABELS;
    return () => {
      page.left = LEFT;
    };
  });
  const series = $derived(page.sites.value?.series ?? []);
  const kinds = $derived(distinctKinds(series.map((entry) => entry.kind)));
  const kind = $derived.by(() => {
    const wanted = page.selection.kind ?? "output";
    return kinds.includes(wanted) ? wanted : (kinds[0] ?? wanted);
  });
  const modes = $derived([
    ...new Set(series.filter((entry) => entry.kind === kind).map((entry) => entry.mode)),
  ]);
  const mode = $derived.by(() => {
    const wanted = page.selection.mode ?? "train";
    return modes.includes(wanted) ? wanted : (modes[0] ?? wanted);
  });
  const contexts = $derived(contextsOf(series.filter((entry) => entry.kind === kind && entry.mode === mode)));
  // Where none is chosen, that of the selected site.
  const context = $derived(contextAmong(contexts, page.selection.context ?? page.series?.context ?? null));
  const query = $derived(
    `kind=${kind}&mode=${mode}&context=${encodeURIComponent(context)}&rank=${page.selection.rank}&stat=${encodeURIComponent(page.statOf(kind))}`,
  );
  return {
    page,
    get kinds() {
      return kinds;
    },
    get kind() {
      return kind;
    },
    get modes() {
      return modes;
    },
    get mode() {
      return mode;
    },
    get contexts() {
      return contexts;
    },
    get context() {
      return context;
    },
    get query() {
      return query;
    },
  };
}
