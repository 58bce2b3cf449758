/** The state of the page: what is selected, what was answered, where the cross-hair is. */

import { untrack } from "svelte";
import { LEFT, nearest, RIGHT, type Span } from "./charts/scale";
import { Live } from "./live.svelte";
import { START_AT } from "./offline";
import { Resource } from "./resource.svelte";
import { fragment, parsed, type Selection, seriesFor } from "./selection";
import type { HistogramView, RunList, ScalarView, SeriesEntry, SiteList, Timeline } from "./wire.gen";

/** Selecting another of these is a place to come back to; the rest only changes how it looks. */
const PLACES = [
  "run",
  "view",
  "site",
  "kind",
  "port",
  "mode",
  "dtype",
  "reading",
  "trace",
  "op",
  "within",
  "entered",
  "pane",
  "node",
] as const;

export class Scope {
  selection = $state<Selection>(parsed(location.hash || START_AT));
  hover = $state<number | null>(null);
  /** Pixels that the plots and the room beside them have. */
  room = $state(0);
  /** Bins that the histogram over time has room for, 0 before it is laid out. */
  bins = $state(0);
  /** Room to the left of all plots: the labels of a heat map need more of it. */
  left = $state(LEFT);
  /** Steps that are shown too, though the selected run has none there: those of runs that are compared with it. */
  reach = $state<Span | null>(null);
  /** Steps to walk along, where a view has its own. */
  steps = $state.raw<Float64Array | null>(null);
  /** What is searched for among the sites. */
  search = $state("");

  readonly runs = new Resource<RunList>(1000);
  readonly sites = new Resource<SiteList>(2000);
  readonly timeline = new Resource<Timeline>();
  readonly scalar = new Resource<ScalarView>();
  readonly histogram = new Resource<HistogramView>();
  readonly live: Live;

  /** Counts the news of the list and of the selected run. */
  #listNews = $state(0);
  #runNews = $state(0);

  constructor() {
    this.live = new Live(
      (change) => {
        this.#listNews += 1;
        if (change.run === this.selection.run) this.#runNews += 1;
      },
      () => {
        this.#listNews += 1;
        this.#runNews += 1;
      },
    );
    addEventListener("popstate", () => {
      this.selection = parsed(location.hash);
    });
    $effect(() => this.#loadRuns());
    $effect(() => this.#loadRun());
    $effect(() => this.#loadScalar());
    $effect(() => this.#loadHistogram());
    $effect(() => this.#chooseRun());
    $effect(() => this.#chooseSite());
  }

  /** Changes whenever the selected run may have something new. */
  get news(): number {
    return this.#runNews;
  }

  /** Changes whenever any run may have something new. */
  get newsOfAll(): number {
    return this.#listNews;
  }

  /** Pixels of the plots, in whole multiples: dragging the window must not ask for a new picture at every pixel. */
  readonly width = $derived(Math.floor(Math.max(this.room - this.left - RIGHT, 0) / 16) * 16);

  readonly entry = $derived(this.runs.value?.runs.find((run) => run.name === this.selection.run) ?? null);

  readonly seriesOfSite = $derived(
    this.sites.value?.series.filter((entry) => entry.site === this.selection.site) ?? [],
  );

  readonly series = $derived<SeriesEntry | null>(seriesFor(this.seriesOfSite, this.selection));

  readonly kpi = $derived(
    this.timeline.value?.kpis.find((view) => view.name === this.selection.kpi) ??
      this.timeline.value?.kpis[0] ??
      null,
  );

  /** The steps that all charts show. */
  readonly span = $derived.by<Span>(() => {
    const { first, last } = this.selection;
    const histogram = this.histogram.value;
    const timeline = this.timeline.value;
    const from =
      first ??
      Math.min(
        timeline?.first_step ?? Number.POSITIVE_INFINITY,
        histogram?.left[0] ?? Number.POSITIVE_INFINITY,
        this.reach?.min ?? Number.POSITIVE_INFINITY,
      );
    const to =
      last ??
      Math.max(
        timeline?.last_step ?? Number.NEGATIVE_INFINITY,
        histogram?.right.at(-1) ?? Number.NEGATIVE_INFINITY,
        this.reach?.max ?? Number.NEGATIVE_INFINITY,
      );
    if (!Number.isFinite(from) || !Number.isFinite(to)) return { min: 0, max: 1 };
    return to > from ? { min: from, max: to } : { min: from - 0.5, max: from + 0.5 };
  });

  /** The step of the cross-hair: under the pointer, else pinned. */
  readonly step = $derived(this.hover ?? this.selection.step);

  /** Change the selection, and the address with it. */
  select(changes: Partial<Selection>): void {
    const moved = PLACES.some((name) => name in changes && changes[name] !== this.selection[name]);
    Object.assign(this.selection, changes);
    this.#write(moved);
  }

  #write(moved: boolean): void {
    const hash = fragment(this.selection);
    // A page inside a notebook may have no address of its own.
    if (hash === location.hash || location.protocol === "about:") return;
    if (moved) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }

  selectRun(name: string): void {
    // Trials are compared at the same step.
    const anew = this.selection.view === "tensors" ? {} : { step: null, first: null, last: null };
    this.select({ run: name, ...anew });
  }

  selectSite(site: string, kind: string | null = this.selection.kind): void {
    this.select({ site, kind });
  }

  /** The recorded step nearest to a place on the axis. */
  snapped(step: number): number | null {
    if (this.steps !== null) return this.steps[nearest(this.steps, step)] ?? null;
    const steps = this.histogram.value?.last_steps ?? this.kpi?.last_steps;
    const dense =
      this.kpi !== null && (steps === undefined || this.kpi.last_steps.length > 2 * steps.length)
        ? this.kpi.last_steps
        : steps;
    if (dense === undefined) return null;
    return dense[nearest(dense, step)] ?? null;
  }

  /** Pin the cross-hair to the neighbouring recorded step. */
  walk(by: number): void {
    const steps = this.steps ?? this.histogram.value?.last_steps ?? this.kpi?.last_steps;
    if (steps === undefined || steps.length === 0) return;
    // Without a cross-hair the first key sets it to the last step, which a view with steps of its own shows already.
    const unset = steps.length - 1 - (this.steps === null ? by : 0);
    const from = this.step === null ? unset : nearest(steps, this.step);
    const to = Math.min(Math.max(from + by, 0), steps.length - 1);
    this.hover = null;
    this.select({ step: steps[to] ?? null });
  }

  #loadRuns(): void {
    this.runs.load(this.#listNews >= 0 ? "api/runs" : null, "runs");
  }

  #loadRun(): void {
    const run = this.selection.run;
    void this.#runNews;
    const address = run === null ? null : `api/run/${encodeURIComponent(run)}`;
    this.sites.load(address && `${address}/sites`, `${run}`);
    if (this.selection.view === "tensors") this.timeline.load(null, "");
    else if (this.width > 0)
      this.timeline.load(address && `${address}/timeline?${this.screen()}${this.smooth()}`, `${run}`);
  }

  #loadScalar(): void {
    const asked = this.#asked();
    const stat = this.selection.stat;
    if (this.width === 0) return;
    if (asked === null) this.scalar.load(null, "");
    else
      this.scalar.load(
        `${asked.address}/scalar?${asked.which}&stat=${encodeURIComponent(stat)}${this.smooth()}`,
        `${asked.identity}/${stat}`,
      );
  }

  #loadHistogram(): void {
    const asked = this.#asked();
    const { axis, view } = this.selection;
    if (this.width === 0) return;
    if (asked === null) this.histogram.load(null, "");
    // Where it is drawn, its height is known with the next frame: asking before would be asking twice.
    else if (this.bins > 0 || view !== "charts")
      this.histogram.load(
        `${asked.address}/histogram?${asked.which}&axis=${axis}&height=${this.bins || 96}`,
        `${asked.identity}/${axis}`,
      );
  }

  /** What is asked for of the selected series, null if there is none. */
  #asked(): { address: string; which: string; identity: string } | null {
    const series = this.series;
    const { run, view } = this.selection;
    void this.#runNews;
    if (series === null || run === null || view === "tensors") return null;
    return {
      address: `api/run/${encodeURIComponent(run)}`,
      which: `series=${series.series}&rank=${series.rank}&${this.screen()}`,
      identity: `${run}/${series.series}/${series.rank}`,
    };
  }

  /** Weight of the running mean, for requests of curves. */
  smooth(): string {
    return this.selection.smooth > 0 ? `&smooth=${this.selection.smooth / 100}` : "";
  }

  /** Width and steps of the plots, for requests. */
  screen(): string {
    const { first, last } = this.selection;
    const parts = [`width=${this.width}`];
    if (first !== null) parts.push(`first=${Math.round(first)}`);
    if (last !== null) parts.push(`last=${Math.round(last)}`);
    return parts.join("&");
  }

  #chooseRun(): void {
    const runs = this.runs.value?.runs;
    if (this.selection.run !== null || runs === undefined || runs.length === 0) return;
    const chosen =
      runs.find((run) => run.status === "running") ??
      runs.find((run) => run.status !== "unreadable") ??
      runs[0];
    if (chosen !== undefined) {
      this.selection.run = chosen.name;
      this.#write(false);
    }
  }

  /** A site to begin with, or the traces of a run without any, so that the first look is never empty. */
  #chooseSite(): void {
    const sites = this.sites.value;
    if (sites === null || sites.run !== this.selection.run) return;
    if (this.selection.site !== null && sites.series.some((entry) => entry.site === this.selection.site))
      return;
    if (sites.series.length === 0 && sites.traces > 0 && untrack(() => this.selection.view) === "charts") {
      this.selection.view = "traces";
      this.#write(false);
    }
    if (this.selection.site !== null && sites.series.length === 0) return;
    const chosen = sites.series.find((entry) => entry.kind === "output") ?? sites.series[0];
    if (chosen !== undefined) {
      this.selection.site = chosen.site;
      this.#write(false);
    }
  }
}
