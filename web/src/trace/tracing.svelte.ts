/** What the trace view shows: the chosen trace, its graph, the chosen operation and its values. */

import { untrack } from "svelte";
import { type Cell, nodeTable } from "../charts/export";
import { lastUntil } from "../charts/scale";
import { NOTHING } from "../graph/order";
import type { Scene } from "../graph/scene";
import { isClosed, isFile } from "../offline";
import { NOTHING_SELECTED, type PageState } from "../pagestate.svelte";
import { Resource } from "../resource.svelte";
import type { Selection } from "../selection";
import type {
  OperationLink,
  OperationList,
  OperationView,
  TraceEntry,
  TraceGroups,
  TraceNumbers,
  TraceOverview,
  TracePicture,
  ValueView,
} from "../wire.gen";
import { numbersOf } from "./fills";
import { TraceGraph } from "./tracegraph";

const MOST_FOUND = 60;

export class Tracing {
  readonly picture = new Resource<TracePicture>();
  readonly groups = new Resource<TraceGroups>();
  readonly numbers = new Resource<TraceNumbers>();
  readonly overview = new Resource<TraceOverview>();
  readonly operation = new Resource<OperationView>();
  readonly value = new Resource<ValueView>();
  readonly gradient = new Resource<ValueView>();
  readonly operations = new Resource<OperationList>();

  search = $state("");
  /** Room for a picture, in pixels. */
  width = $state(0);
  /** Counts the arrangements of the scene. */
  version = $state(0);
  #missing = $state.raw<readonly number[]>([]);
  #revealed = "";
  #pinned = "";

  constructor(readonly page: PageState) {
    $effect(() => this.#pin());
    $effect(() => this.#loadGraph());
    $effect(() => this.#loadGroups());
    $effect(() => this.#loadOverview());
    $effect(() => this.#loadOperation());
    $effect(() => this.#loadValues());
    $effect(() => this.#loadOperations());
    $effect(() => this.#arrange());
    $effect(() => this.#reveal());
  }

  readonly #chosenTrace = $derived.by(() =>
    this.page.tracesOfRun.find((entry) => entry.name === this.page.selection.trace),
  );

  /** The newest trace of the last step at or before the crosshair that has any, unless another one of it is chosen. */
  readonly entry = $derived.by(() => {
    const { tracesOfRun, selection } = this.page;
    const chosen = this.#chosenTrace;
    const steps = Float64Array.from(tracesOfRun.flatMap(({ step }) => step ?? [])).sort();
    const at = selection.step === null ? undefined : steps[Math.max(lastUntil(steps, selection.step), 0)];
    // One of no step stays until the crosshair is at the step of another one.
    const stays = at === undefined || chosen?.step === at || (chosen?.step === null && at !== selection.step);
    if (chosen !== undefined && stays) return chosen;
    return tracesOfRun.filter(({ step }) => step === at).at(-1) ?? tracesOfRun.at(-1) ?? null;
  });

  readonly #graph = $derived.by(() =>
    this.picture.value === null ? null : new TraceGraph(this.picture.value),
  );

  readonly scene = $derived.by<Scene | null>(() => this.#graph?.scene ?? null);

  /** The groups that are open, and the one that is looked at. */
  readonly open = $derived.by<ReadonlySet<number>>(() => {
    const { opened } = this.page.selection;
    if (opened === null) return new Set(this.picture.value?.opened ?? []);
    return new Set(
      opened
        .split(".")
        .map(Number)
        .filter((node) => this.scene?.isGroup(node)),
    );
  });

  readonly within = $derived.by(() => {
    const { within } = this.page.selection;
    return within !== null && this.scene?.isGroup(within) ? within : 0;
  });

  /** The selected module, where no operation is selected. */
  readonly block = $derived.by(() => {
    const { op, module } = this.page.selection;
    return op === null && module !== null && this.scene?.isGroup(module) ? module : null;
  });

  /** The operation whose value is shown: the chosen one, or that of what a module gives. */
  readonly #op = $derived.by(
    () => this.page.selection.op ?? this.#graph?.operation.get(this.block ?? NOTHING) ?? null,
  );

  /** What is known of it, once that is there. */
  readonly chosen = $derived.by(() =>
    this.operation.value?.operation === this.#op ? this.operation.value : null,
  );

  /** The requested index on the axes that a picture leaves out; a smaller tensor shows the nearest. */
  readonly valueIndex = $derived.by(() => {
    const at = this.page.selection.valueIndex ?? "";
    return /^\d{1,9}(\.\d{1,9})*$/.test(at) ? at.split(".").map(Number) : [];
  });

  /** The node of the graph that is marked. */
  readonly node = $derived.by(() => this.block ?? this.chosen?.part ?? null);

  readonly #address = $derived.by(() =>
    this.page.selection.run === null ? null : `api/run/${encodeURIComponent(this.page.selection.run)}`,
  );

  /** The results of the search, and how many there are. */
  readonly results = $derived.by(() => {
    const words = this.search.toLowerCase().split(/\s+/);
    const fits = (link: OperationLink) =>
      words.every((word) => `${link.label} ${link.module.toLowerCase()}`.includes(word));
    const links = this.operations.value?.operations.filter(fits) ?? [];
    return {
      links: links.slice(0, MOST_FOUND),
      count: isFile ? links.length : (this.operations.value?.matches ?? 0),
    };
  });

  table(): readonly (readonly Cell[])[] {
    const { scene } = this;
    const numbers = this.numbers.value;
    return scene === null
      ? []
      : nodeTable(scene.graph, scene.keys, numbers?.name ?? "number", numbersOf(numbers));
  }

  choose(trace: string): void {
    this.search = "";
    const entry = this.page.tracesOfRun.find(({ name }) => name === trace);
    if (entry !== undefined) this.page.selectTrace(entry);
  }

  /** Select an operation; the modules around it open. */
  select(op: number): void {
    this.page.select({ op, module: null });
  }

  /** A node of the graph was clicked: nothing opens. */
  pick(node: number): void {
    const first = this.#graph?.operation.get(node);
    const isGroup = this.scene?.isGroup(node);
    if (first === undefined || isGroup) this.page.select({ op: null, module: isGroup ? node : null });
    else if (this.block !== null || node !== this.chosen?.part) {
      this.#revealed = this.#key(first);
      this.select(first);
    }
  }

  /** Open a group, or close it. */
  toggle(node: number): void {
    const open = new Set(this.open);
    if (!open.delete(node)) open.add(node);
    this.page.select({ opened: [...open].join(".") });
  }

  /** Look at one group alone; 0 for the whole. */
  enter(node: number): void {
    this.page.select({ within: node === 0 ? null : node });
  }

  unroll(unrolled: boolean): void {
    this.#revealed = "";
    this.page.select({ unrolled, opened: null, within: null, module: null });
  }

  /** Show another position on the axes that a picture leaves out. */
  place(at: readonly number[], changes: Partial<Selection> = {}): void {
    this.page.select({ ...changes, valueIndex: at.join(".").replace(/(^|\.)0(\.0)*$/, "") || null });
  }

  #key(op: number | null): string {
    return `${this.entry?.name}/${op}/${this.page.selection.unrolled}`;
  }

  #path(what: string, ...more: readonly string[]): string | null {
    if (this.entry === null || this.#address === null) return null;
    return `${this.#address}/${what}?${[`trace=${this.entry.name}`, ...more].join("&")}`;
  }

  /** Of answers that depend on whether each pass of a loop is its own node. */
  #graphPath(what: string, ...more: readonly string[]): string | null {
    return this.#path(what, ...more, ...(this.page.selection.unrolled ? ["unrolled=1"] : []));
  }

  /** Select the trace on screen, and move the crosshair to its step. */
  #pin(): void {
    const { entry } = this;
    const { run, trace, step } = this.page.selection;
    if (entry === null) return;
    const key = `${run}/${entry.name}`;
    const isKnown = this.#pinned === key;
    this.#pinned = key;
    const at = entry.step === null || step !== null ? {} : { step: entry.step };
    if (trace !== entry.name)
      this.page.select(
        { trace: entry.name, ...at, ...(this.#isLikeChosen(entry) ? {} : NOTHING_SELECTED) },
        false,
      );
    else if (step === null && !isKnown) this.page.select(at);
  }

  /** Whether numbers of operations and modules mean the same as in the chosen trace. */
  #isLikeChosen({ model, operations }: TraceEntry): boolean {
    const chosen = this.#chosenTrace;
    return chosen === undefined || (chosen.model === model && chosen.operations === operations);
  }

  #loadGraph(): void {
    const { traceColor, unrolled } = this.page.selection;
    const identity = `${this.#address}/${this.entry?.name}/${unrolled}`;
    this.picture.load(this.#graphPath("trace"), identity);
    const path =
      traceColor === null
        ? null
        : this.#graphPath("trace-numbers", `field=${encodeURIComponent(traceColor)}`);
    this.numbers.load(path, `${identity}/${traceColor}`);
  }

  #loadGroups(): void {
    const path =
      this.#missing.length === 0 ? null : this.#graphPath("trace-groups", `of=${this.#missing.join(".")}`);
    this.groups.load(path, `${this.#address}/${this.entry?.name}`);
  }

  #arrange(): void {
    const { scene, groups } = this;
    if (scene === null) return;
    if (groups.value !== null) this.#graph?.add(groups.value);
    this.#missing = scene.arrange(this.within, this.open);
    untrack(() => {
      this.version += 1;
    });
  }

  /** Shown as long as nothing is chosen, and asked for behind the graph. */
  #loadOverview(): void {
    if (this.page.selection.op === null && !this.picture.busy)
      this.overview.load(this.#path("trace-overview"), `${this.#address}/${this.entry?.name}`);
  }

  #loadOperation(): void {
    const op = this.#op;
    const path = op === null ? null : this.#graphPath("operation", `op=${op}`);
    this.operation.load(path, `${this.#address}/${this.entry?.name}/${op}`);
  }

  #loadValues(): void {
    const chosen = this.chosen;
    const identity = `${this.#address}/${this.entry?.name}/${chosen?.operation}`;
    for (const [what, resource] of [
      ["value", this.value],
      ["gradient", this.gradient],
    ] as const) {
      const kept = chosen !== null && (what === "value" ? chosen.has_value : chosen.has_gradient);
      resource.load(kept && this.width > 0 ? this.#valuePath(what, chosen.operation) : null, identity);
    }
  }

  #valuePath(what: string, op: number): string | null {
    const { picture, tile } = this.page.selection;
    const look: string[] = [];
    if (picture !== null) look.push(`picture=${encodeURIComponent(picture)}`);
    if (this.valueIndex.length > 0) look.push(`at=${this.valueIndex.join(".")}`);
    if (tile !== null && tile > 0) look.push(`tile=${tile}`);
    // A file holds one picture of each.
    const more = [`op=${op}`, `what=${what}`, ...(isClosed ? [] : look)];
    return this.#path("value", ...more, `width=${this.width}`, `height=${Math.round(this.width * 0.75)}`);
  }

  #loadOperations(): void {
    const text = this.search.trim();
    // A file has the whole list: the page filters it.
    const path =
      text === "" ? null : this.#path("operations", `search=${isFile ? "" : encodeURIComponent(text)}`);
    this.operations.load(path, `${this.#address}/${this.entry?.name}`);
  }

  /** Open what is around an operation that was chosen elsewhere than in the picture: by a link, a search, an address. */
  #reveal(): void {
    const { chosen, scene } = this;
    const key = this.#key(chosen?.operation ?? null);
    if (chosen === null || this.block !== null || scene === null || this.#revealed === key) return;
    this.#revealed = key;
    const around = chosen.around.map((crumb) => crumb.id);
    const within = around.includes(this.within) ? this.page.selection.within : null;
    const isHidden = around.some((node) => !this.open.has(node));
    if (isHidden || within !== this.page.selection.within)
      this.page.select({ within, opened: [...new Set([...this.open, ...around])].join(".") });
  }
}
