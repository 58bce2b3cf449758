/** The statistic that colors the nodes of the module graph, and its color scale. */

import { palette } from "../charts/colors";
import { shadingOf } from "../charts/heatmap";
import { distinctKinds } from "../format";
import { isClosed } from "../offline";
import type { PageState } from "../pagestate.svelte";
import { stepOf } from "../requests";
import { ask, Resource } from "../resource.svelte";
import { contextAmong, contextsOf } from "../selection";
import type { HeatMapView, PartNumbers } from "../wire.gen";
import { colored, MISSING, numbersAt } from "./nodecolors";

export const NO_COLORS = "none";

export class Coloring {
  readonly #answer = new Resource<PartNumbers>(500);
  /** A saved file has the numbers of the last step; those of other steps are in its heat maps, by context. */
  #heats = $state.raw<readonly (readonly [context: string, view: HeatMapView])[]>([]);
  readonly #page: PageState;
  readonly #theme: () => "dark" | "light";

  constructor(page: PageState, theme: () => "dark" | "light") {
    this.#page = page;
    this.#theme = theme;
    $effect(() => this.#load());
    $effect(() => this.#loadHeats());
  }

  readonly #series = $derived.by(() => this.#page.sites.value?.series ?? []);

  readonly kinds = $derived.by(() => distinctKinds(this.#series.map((entry) => entry.kind)));

  readonly modes = $derived.by(() => [...new Set(this.#series.map((entry) => entry.mode))]);

  /** The kind whose statistic colors the graph. */
  readonly kind = $derived.by(
    () =>
      this.#page.selection.colorKind ??
      (this.kinds.includes("output") ? "output" : (this.kinds[0] ?? NO_COLORS)),
  );

  readonly #ofKind = $derived.by(() => this.#series.filter((entry) => entry.kind === this.kind));

  /** The requested mode, or the first mode that the kind has. */
  readonly mode = $derived.by(() => {
    const wanted = this.#page.selection.mode ?? "train";
    return this.#ofKind.some((entry) => entry.mode === wanted) ? wanted : (this.#ofKind[0]?.mode ?? wanted);
  });

  readonly contexts = $derived.by(() => contextsOf(this.#ofKind.filter((entry) => entry.mode === this.mode)));

  readonly context = $derived.by(() => contextAmong(this.contexts, this.#page.selection.context));

  readonly missing = $derived.by(() => MISSING[this.#theme()]);

  readonly numbers = $derived.by(() => {
    const numbers = this.#answer.value;
    return numbers === null || !isClosed ? numbers : numbersAt(numbers, this.#heats, this.#page.shownStep);
  });

  get problem(): string | null {
    return this.#answer.problem;
  }

  /** One scale for all steps: a node whose value changes over the steps changes its color. */
  readonly shading = $derived.by(() => {
    const scale = this.numbers?.scale;
    return scale === undefined ? null : shadingOf(scale, !this.#page.selection.heatLinear, false);
  });

  readonly fillOf = $derived.by(() =>
    this.numbers === null || this.kind === NO_COLORS
      ? null
      : colored(this.numbers, this.shading, palette(this.#theme())),
  );

  readonly numberOf = $derived.by(() => {
    const { numbers } = this;
    return new Map(Array.from(numbers?.parts ?? [], (node, at) => [node, numbers?.values[at] ?? Number.NaN]));
  });

  #load(): void {
    const { news, selection } = this.#page;
    const { run } = selection;
    const { mode, context } = this;
    const stat = this.#page.statOf(this.kind);
    void news;
    if (run === null || !this.kinds.includes(this.kind)) {
      this.#answer.load(null, "");
      return;
    }
    const address = `api/run/${encodeURIComponent(run)}`;
    const query = `kind=${this.kind}&stat=${encodeURIComponent(stat)}&mode=${mode}&context=${encodeURIComponent(context)}`;
    const identity = `${run} ${this.kind} ${stat} ${mode} ${context}`;
    const more = isClosed ? "&tensors=1" : stepOf(this.#page);
    this.#answer.load(`${address}/graph-numbers?${query}${more}`, identity);
  }

  #loadHeats(): (() => void) | undefined {
    const [numbers, { run }] = [this.#answer.value, this.#page.selection];
    if (!isClosed || numbers === null) return;
    const abort = new AbortController();
    const contexts = [...new Set([numbers.context, ...numbers.contexts])];
    const kinds = [...new Set([numbers.kind, numbers.kind.replace("output", "tensor")])];
    const requests = contexts.flatMap((context) =>
      kinds.map(async (kind) => {
        const which = `kind=${kind}&stat=${encodeURIComponent(numbers.stat)}&mode=${numbers.mode}`;
        const path = `api/run/${encodeURIComponent(run ?? "")}/heatmap?${which}&context=${encodeURIComponent(context)}&rank=0`;
        return [context, await ask<HeatMapView>(path, abort.signal)] as const;
      }),
    );
    void Promise.allSettled(requests).then((answers) => {
      if (!abort.signal.aborted)
        this.#heats = answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : []));
    });
    return () => abort.abort();
  }
}
