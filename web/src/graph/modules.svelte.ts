/** The module graph of the selected run: what is shown, open, colored and pinned. The address holds all of it. */

import { untrack } from "svelte";
import { type Cell, nodeTable } from "../charts/export";
import { factsIn, statText, stepsText } from "../format";
import type { PageState } from "../pagestate.svelte";
import { ask, Resource } from "../resource.svelte";
import { keysIn, keysText } from "../selection";
import type { FindingsView, GroupOrders, NestedGraph } from "../wire.gen";
import { Coloring } from "./coloring.svelte";
import { mergeKey, mergeNamed } from "./merges";
import { Scene } from "./scene";

/** Colors of pinned panels: distinct with any kind of color vision, and from the colors of numbers and findings. */
const PIN_COLORS = ["#cc79a7", "#56b4e9", "#009e73", "#f0e442", "#d55e00"];
const MOST_STRIPES = 64;

export class ModuleGraph {
  readonly graph = new Resource<NestedGraph>(2000);
  readonly findings = new Resource<FindingsView>(5000);
  readonly coloring: Coloring;
  scene = $state.raw<Scene | null>(null);
  /** Counts the arrangements of the scene. */
  version = $state(0);
  /** The folded node that was selected, instead of the first site in it. */
  #grouped: number | null = null;
  #uncovered: string | null = null;
  readonly #page: PageState;

  constructor(page: PageState, theme: () => "dark" | "light") {
    this.#page = page;
    this.coloring = new Coloring(page, theme);
    $effect(() => this.#load());
    $effect(() => this.#take());
    $effect(() => {
      const { entered, expanded } = this.#page.selection;
      if (this.scene !== null) this.#arrange(this.scene, entered, expanded);
    });
    $effect(() => this.#follow());
  }

  readonly #address = $derived.by(() => {
    const { run } = this.#page.selection;
    return run === null ? null : `api/run/${encodeURIComponent(run)}`;
  });

  /** The selected merge, once its branches are known. */
  readonly merge = $derived.by(() => {
    void this.version;
    const [{ merge }, scene] = [this.#page.selection, this.scene];
    const node = merge === null || scene === null ? null : mergeNamed(scene, merge);
    return node === null || scene?.sourcesOf(node).length === 0 ? null : node;
  });

  readonly pins = $derived.by(() => keysIn(this.#page.selection.pins));

  readonly selected = $derived.by(() => {
    const { site } = this.#page.selection;
    return this.merge ?? (site === null ? null : this.nodeOf(site));
  });

  /** The site whose panel is shown: of a parameter, its module. */
  readonly site = $derived.by(() => {
    const { site } = this.#page.selection;
    const node = site === null ? null : this.nodeOf(site);
    return node === null ? site : (this.scene?.graph.sites[node] ?? site);
  });

  /** The groups from the root to the entered one. */
  readonly path = $derived.by(() => {
    void this.version;
    return this.scene?.chain(this.scene.entered) ?? [];
  });

  readonly outlined = $derived.by(() => {
    void this.version;
    const colors = new Map<number, string>();
    this.pins.forEach((site, at) => {
      const node = this.scene?.named(site) ?? null;
      const seen = node === null ? null : (this.scene?.shownFor(node) ?? null);
      if (seen !== null) colors.set(seen, this.pinColor(at));
    });
    return colors;
  });

  /** Titles of findings by node, without notes. */
  readonly #alarms = $derived.by(() => {
    const titles = new Map<number, string[]>();
    for (const { site, severity, title } of this.findings.value?.findings ?? []) {
      // One without a site is about the training as a whole.
      const node = severity === "note" || site === "" ? null : this.nodeOf(site);
      if (node !== null) titles.set(node, [...(titles.get(node) ?? []), title]);
    }
    return titles;
  });

  readonly alarmed = $derived.by<ReadonlySet<number>>(() => {
    void this.version;
    return new Set([...this.#alarms.keys()].flatMap((node) => this.scene?.shownFor(node) ?? []));
  });

  /** Colors of a node: several for one that stands for others. Cached, because every frame reads them. */
  readonly fills = $derived.by(() => {
    const [scene, fillOf, missing] = [this.scene, this.coloring.fillOf, this.coloring.missing];
    const known = new Map<number, readonly string[]>();
    return (node: number): readonly string[] => {
      if (fillOf === null || scene === null) return [];
      let fills = known.get(node);
      if (fills === undefined) {
        fills = scene
          .members(node)
          .slice(0, MOST_STRIPES)
          .map((each) => fillOf.get(each) ?? missing);
        known.set(node, fills);
      }
      return fills;
    };
  });

  pinColor(pin: number): string {
    return PIN_COLORS[pin % PIN_COLORS.length] ?? "#888888";
  }

  /** The node of a site; a parameter belongs to its module. */
  nodeOf(site: string): number | null {
    const module = site.includes(".") ? site.slice(0, site.lastIndexOf(".")) : "(model)";
    return this.scene?.named(site) ?? this.scene?.named(module) ?? null;
  }

  detailOf(site: string): string {
    const node = this.nodeOf(site);
    return node === null ? "" : (this.scene?.graph.details[node] ?? "");
  }

  toggle(node: number): void {
    if (this.scene === null) return;
    const open = this.#open(this.scene);
    if (!open.delete(node)) open.add(node);
    this.#page.select({ expanded: this.#keys(this.scene, open) });
  }

  enter(node: number): void {
    const scene = this.scene;
    if (scene === null) return;
    const expanded = this.#keys(scene, this.#open(scene).add(node));
    this.#page.select({ entered: node === 0 ? null : (scene.keys[node] ?? null), expanded });
  }

  leave(): void {
    if (this.scene !== null && this.scene.entered !== 0) this.enter(this.scene.parent(this.scene.entered));
  }

  select(node: number): void {
    const scene = this.scene;
    if (scene === null) return;
    if (scene.graph.roles[node] === "merge") {
      this.#page.select({ merge: mergeKey(scene, node) });
      return;
    }
    const ioNode = scene.ioNode(node);
    if (ioNode !== null) {
      const kind = ioNode.isInput ? "input" : "output";
      this.#page.select({ site: scene.graph.sites[scene.entered] ?? "", kind, port: ioNode.port.name });
      return;
    }
    const site = scene.siteOf(node);
    this.#grouped = scene.graph.sites[node] === "" ? node : null;
    if (site !== "") this.#page.selectSite(site);
  }

  pin(site: string): void {
    if (site !== "" && !this.pins.includes(site)) this.#page.select({ pins: keysText([...this.pins, site]) });
  }

  unpin(site: string): void {
    const left = this.pins.filter((each) => each !== site);
    this.#page.select({ pins: left.length > 0 ? keysText(left) : null });
  }

  table(): readonly (readonly Cell[])[] {
    const { kind, stat, step } = this.coloring.numbers ?? { kind: "", stat: "", step: 0 };
    return this.scene === null
      ? []
      : nodeTable(
          this.scene.graph,
          this.scene.keys,
          `${kind} ${stat} ${stepsText(step)}`,
          this.coloring.numberOf,
        );
  }

  /** Rows of the tooltip. */
  facts(node: number): (readonly [string, string])[] {
    const scene = this.scene;
    if (scene === null) return [];
    const ioNode = scene.ioNode(node);
    if (ioNode !== null)
      return [[ioNode.isInput ? "input" : "output", ioNode.port.name] as const, ["shape", ioNode.port.shape]];
    const rows = factsIn(scene.graph.facts[node]);
    const times = scene.graph.times[node] ?? 1;
    if (scene.graph.sites[node] === "") rows.unshift(["contains", scene.graph.names[node] ?? ""]);
    if (times > 1) rows.push(["repeats", `${times} times, built alike`]);
    const { numbers } = this.coloring;
    const at = numbers?.parts.indexOf(node) ?? -1;
    // An attached tensor has no output: it shows its own value, or the gradient of that.
    const kind = numbers?.kind.replace("output", scene.graph.roles[node] === "tensor" ? "tensor" : "output");
    const context = numbers?.contexts[at] ?? numbers?.context ?? "";
    if (numbers !== null && at >= 0)
      rows.push([
        `${kind} ${numbers.stat}${context && ` in ${context}`}`,
        `${statText(numbers.values[at] ?? Number.NaN)} ${stepsText(numbers.steps[at] ?? 0)}`,
      ]);
    for (const [each, titles] of this.#alarms)
      if (scene.shownFor(each) === node) for (const title of titles) rows.push(["finding", title]);
    return rows;
  }

  #load(): void {
    // A call that was not seen before brings series that were not there before.
    void this.#page.sites.value?.series.length;
    this.graph.load(this.#address && `${this.#address}/graph`, `${this.#address}`);
    this.findings.load(this.#address && `${this.#address}/findings`, `${this.#address}`);
  }

  /** The scene stays when the answer has the same graph, also that of another run of the same model. */
  #take(): void {
    const value = this.graph.value;
    untrack(() => {
      if (value === null) this.scene = null;
      else if (this.scene === null || !isSame(this.scene.graph, value)) this.scene = new Scene(value);
    });
  }

  /** Follow a selection in the list of sites: open the groups around the node, unless the address says what is open. */
  #follow(): void {
    const { site, run } = this.#page.selection;
    const scene = this.scene;
    // Only the list of sites says whether this site is the default one.
    if (scene === null || site === null || this.#page.sites.value?.run !== run) return;
    untrack(() => {
      const { linkedSite, selection, isSiteChosen } = this.#page;
      const isNew =
        this.#uncovered === null ? selection.expanded === null && isSiteChosen : this.#uncovered !== site;
      if (linkedSite === site || isNew) this.#uncover(scene, site);
      this.#uncovered = site;
      this.#page.linkedSite = null;
    });
  }

  #uncover(scene: Scene, site: string): void {
    const node = this.nodeOf(site);
    if (node === null) return;
    const chain = scene.chain(node);
    if (this.#grouped !== null && chain.includes(this.#grouped)) return;
    const open = this.#open(scene);
    const closed = chain.slice(0, -1).filter((each) => !open.has(each));
    const isInside = chain.includes(scene.entered);
    if (closed.length === 0 && isInside) return;
    for (const each of closed) open.add(each);
    this.#page.select({ ...(isInside ? {} : { entered: null }), expanded: this.#keys(scene, open) });
  }

  #open(scene: Scene): Set<number> {
    const { expanded } = this.#page.selection;
    if (expanded === null) return new Set(scene.graph.opened);
    return new Set(keysIn(expanded).flatMap((key) => scene.named(key) ?? []));
  }

  #keys(scene: Scene, open: ReadonlySet<number>): string {
    return keysText([...open].flatMap((node) => scene.keys[node] || []));
  }

  #arrange(scene: Scene, entered: string | null, _expanded: string | null): void {
    const root = entered === null ? 0 : (scene.named(entered) ?? 0);
    const missing = scene.arrange(root, this.#open(scene));
    untrack(() => {
      this.version += 1;
    });
    if (missing.length > 0) void this.#fetchGroups(scene, missing);
  }

  async #fetchGroups(scene: Scene, missing: readonly number[]): Promise<void> {
    const path = `${this.#address}/graph-groups?of=${missing.join(",")}`;
    const answer = await ask<GroupOrders>(path, new AbortController().signal);
    if (scene !== this.scene || answer.groups.length === 0) return;
    scene.add(answer.groups);
    scene.arrange(scene.entered, this.#open(scene));
    this.version += 1;
  }
}

function isSame(a: NestedGraph, b: NestedGraph): boolean {
  const columns = ["sites", "details", "parents"] as const;
  return columns.every(
    (name) => a[name].length === b[name].length && a[name].every((x, at) => x === b[name][at]),
  );
}
