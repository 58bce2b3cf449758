/** Named tensors: the selection, and the requests for it. */

import type { Span } from "../charts/scale";
import type { PageState } from "../pagestate.svelte";
import { screenOf, smoothOf } from "../requests";
import { Resource } from "../resource.svelte";
import type { Selection } from "../selection";
import type { TensorPanel, TensorsView } from "../wire.gen";

type Chosen = Pick<
  Selection,
  "type" | "iteration" | "node" | "role" | "sample" | "loss" | "tensorStat" | "valueForm"
>;

export class Tensors {
  readonly answer = new Resource<TensorsView>();
  /** The index on the axes that an image does not show. */
  at = $state.raw<readonly number[]>([]);
  /** Steps of the metrics, while they are shown. */
  span = $state.raw<Span | null>(null);

  constructor(readonly page: PageState) {
    $effect(() => this.#load());
    $effect(() => {
      const { panel } = this;
      const [min, max] = [panel?.steps[0], panel?.steps.at(-1)];
      page.steps = this.span === null ? (panel?.steps ?? null) : null;
      page.extraSteps = this.span ?? (min === undefined || max === undefined ? null : { min, max });
      return () => {
        page.steps = null;
        page.extraSteps = null;
      };
    });
  }

  /** The runs side by side. */
  readonly runs = $derived.by(() => {
    const { run, beside } = this.page.selection;
    return run === null ? [] : beside === null || beside === run ? [run] : [run, beside];
  });

  readonly panels = $derived(this.answer.value?.panels ?? []);
  readonly panel = $derived<TensorPanel | null>(this.panels[0] ?? null);
  readonly stat = $derived(this.answer.value?.stat ?? "mean");

  /** Change the selection; the step is that of the crosshair. */
  choose(changes: Partial<Chosen> & { step?: number | null }): void {
    if ("node" in changes || "iteration" in changes) this.at = [];
    this.page.select(changes);
  }

  chooseNode(node: string, iteration: number | null = this.page.selection.iteration): void {
    this.choose({ node, iteration });
  }

  /** The selection for requests: what is null is left out. */
  readonly query = $derived.by(() => {
    const { type, iteration, node, role, sample, loss } = this.page.selection;
    const selected = { type, step: this.page.step, iteration, node, role, sample, loss };
    return Object.entries(selected)
      .filter(([, value]) => value !== null)
      .map(([name, value]) => `&${name}=${encodeURIComponent(String(value))}`)
      .join("");
  });

  #load(): void {
    const { page } = this;
    void page.news;
    const { tensorStat, valueForm, runs } = page.selection;
    if (this.runs.length === 0 || page.width === 0) return;
    const names = [...new Set([...this.runs, ...runs])]
      .map((run) => `run=${encodeURIComponent(run)}`)
      .join("&");
    const look = `${tensorStat === null ? "" : `&stat=${encodeURIComponent(tensorStat)}`}&form=${valueForm ?? "numbers"}`;
    const at = this.at.length > 0 ? `&at=${this.at.join()}` : "";
    this.answer.load(
      `api/tensors?${names}&panels=${this.runs.length}${this.query}${look}${at}&${screenOf(page)}${smoothOf(page)}`,
      "tensors",
    );
  }
}

/** The gradient of a loss in words. */
export function lossText(loss: string): string {
  return loss === "" ? "gradient" : `gradient of ${loss}`;
}

export function roleText(role: string): string {
  return role === "" ? "(the tensor)" : role;
}
