/** The state of the page: the selection, the answers of the server, the crosshair. */

import { untrack } from "svelte";
import { LEFT, lastUntil, RIGHT, type Span } from "./charts/scale";
import { Live } from "./live.svelte";
import { isFile, START_AT } from "./offline";
import { histogramOf, scalarOf, screenOf, smoothOf } from "./requests";
import { Resource } from "./resource.svelte";
import { fragment, parsed, type Selection, seriesFor } from "./selection";
import type {
  HistogramView,
  RunList,
  ScalarView,
  SeriesEntry,
  SiteList,
  Timeline,
  TraceEntry,
  TraceList,
} from "./wire.gen";

/** Changing one of these fields adds an entry to the browser's history. */
const HISTORY_FIELDS = [
  "run",
  "view",
  "site",
  "kind",
  "port",
  "mode",
  "context",
  "dtype",
  "phase",
  "trace",
  "op",
  "within",
  "module",
  "entered",
  "merge",
  "pane",
  "node",
] as const;

/** The selection inside of a trace that was just opened. */
export const NOTHING_SELECTED = { op: null, module: null, opened: null, within: null };

export class PageState {
  selection = $state<Selection>(parsed(location.hash || START_AT));
  hover = $state<number | null>(null);
  /** Pixels of the plots and their margins. */
  room = $state(0);
  /** Bins that fit into the histogram over time, 0 before it is laid out. */
  bins = $state(0);
  /** Left margin of all plots in pixels: the labels of a heat map need more of it. */
  left = $state(LEFT);
  /** Steps outside of the selected run that are shown too, such as those of compared runs. */
  extraSteps = $state<Span | null>(null);
  /** The steps of the view, where it has its own. */
  steps = $state.raw<Float64Array | null>(null);
  /** Recorded steps of the heat map. */
  heatSteps = $state.raw<Float64Array | null>(null);
  /** The search text of the list of sites. */
  search = $state("");
  /** The site of the address where the run does not have it; the address keeps it until another site is selected. */
  missingSite = $state<string | null>(null);
  /** The site of a link: the graph opens the groups around it. */
  linkedSite: string | null = null;

  readonly runs = new Resource<RunList>(500);
  readonly sites = new Resource<SiteList>(2000);
  readonly traces = new Resource<TraceList>(2000);
  readonly timeline = new Resource<Timeline>();
  readonly scalar = new Resource<ScalarView>();
  readonly histogram = new Resource<HistogramView>();
  readonly live: Live;

  /** The selected view, once it is mounted and the width of its plots is known. */
  #shown = $state(this.selection.view);
  /** The site that the page selected by itself: no message where another run does not have it. */
  #defaultSite: string | null = null;
  /** Number of live messages about any run, and about the selected run. */
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
      this.missingSite = null;
      this.selection = parsed(location.hash);
    });
    $effect(() => {
      this.#shown = this.selection.view;
    });
    // Before the page is rendered, so that the server works meanwhile.
    $effect.pre(() => this.#loadRuns());
    $effect.pre(() => this.#chooseRun());
    $effect.pre(() => this.#loadRun());
    $effect.pre(() => this.#chooseSite());
    $effect.pre(() => this.#loadTraces());
    $effect.pre(() => this.#loadScalar());
    $effect.pre(() => this.#loadHistogram());
  }

  /** Changes whenever the selected run may have something new. */
  get news(): number {
    return this.#runNews;
  }

  /** Changes whenever any run may have something new. */
  get newsOfAll(): number {
    return this.#listNews;
  }

  /** Pixels of the plots, rounded to multiples of 16: resizing the window must not cause a request per pixel. */
  readonly width = $derived(Math.floor(Math.max(this.room - this.left - RIGHT, 0) / 16) * 16);

  readonly entry = $derived(this.runs.value?.runs.find((run) => run.name === this.selection.run) ?? null);

  /** The traces of the run, oldest first. */
  readonly tracesOfRun = $derived(
    this.traces.value?.run === this.selection.run ? (this.traces.value?.traces ?? []) : [],
  );

  /** How many traces the run is known to have. */
  readonly #traceCount = $derived(
    this.sites.value?.run === this.selection.run ? (this.sites.value?.traces ?? 0) : 0,
  );

  readonly #looksAtTraces = $derived(this.#shown === "traces");

  /** Whether this is a file of a trace: nothing was recorded beside it. */
  readonly isTraceAlone = $derived(
    isFile && this.sites.value?.series.length === 0 && this.sites.value.traces > 0,
  );

  readonly seriesOfSite = $derived(
    this.sites.value?.series.filter((entry) => entry.site === this.selection.site) ?? [],
  );

  readonly series = $derived<SeriesEntry | null>(seriesFor(this.seriesOfSite, this.selection));

  readonly metric = $derived(
    this.timeline.value?.metrics.find((view) => view.name === this.selection.metric) ??
      this.timeline.value?.metrics[0] ??
      null,
  );

  readonly #firstShown = $derived(
    this.selection.first ??
      Math.min(
        this.timeline.value?.first_step ?? Number.POSITIVE_INFINITY,
        this.histogram.value?.left[0] ?? Number.POSITIVE_INFINITY,
        this.extraSteps?.min ?? Number.POSITIVE_INFINITY,
      ),
  );

  readonly #lastShown = $derived(
    this.selection.last ??
      Math.max(
        this.timeline.value?.last_step ?? Number.NEGATIVE_INFINITY,
        this.histogram.value?.right.at(-1) ?? Number.NEGATIVE_INFINITY,
        this.extraSteps?.max ?? Number.NEGATIVE_INFINITY,
      ),
  );

  /** The steps that all charts show. The same object until they change: with another one all charts are drawn anew. */
  readonly span = $derived.by<Span>(() => {
    const [min, max] = [this.#firstShown, this.#lastShown];
    if (!Number.isFinite(min) || !Number.isFinite(max)) return { min: 0, max: 1 };
    return max > min ? { min, max } : { min: min - 0.5, max: min + 0.5 };
  });

  /** The step of the crosshair: under the pointer, else pinned. */
  readonly step = $derived(this.hover ?? this.selection.step);

  /** The last step of the runs on screen. */
  readonly #latest = $derived.by(() => {
    const { view, run, runs, beside } = this.selection;
    const several = view === "compare" || view === "tensors" ? [run, beside, ...runs] : [run];
    const ends = this.runs.value?.runs.filter(({ name }) => several.includes(name)) ?? [];
    return Math.max(...ends.map(({ last_step }) => last_step ?? Number.NEGATIVE_INFINITY));
  });

  /** The step whose numbers are shown: that of the crosshair, else the last visible one. */
  readonly shownStep = $derived(
    this.steps?.[Math.max(lastUntil(this.steps, this.step ?? Number.MAX_SAFE_INTEGER), 0)] ??
      this.step ??
      Math.min(Number.isFinite(this.#latest) ? this.#latest : this.span.max, Math.floor(this.span.max)),
  );

  /** The step for requests; null for the last step of all, which a saved page holds. */
  readonly requestedStep = $derived(this.step ?? (this.selection.last === null ? null : this.shownStep));

  /** The step of the vertical line through all plots: a view with its own steps always has one. */
  readonly crosshairStep = $derived(this.steps === null ? this.step : this.shownStep);

  /** Change the selection and the address; `isChosen` is false where the page and not the user selects. */
  select(changed: Partial<Selection>, isChosen = true): void {
    // Selecting a site deselects a merge.
    const changes = "site" in changed ? { merge: null, ...changed } : changed;
    const moved = HISTORY_FIELDS.some((name) => name in changes && changes[name] !== this.selection[name]);
    if ("site" in changes) this.missingSite = this.#defaultSite = null;
    Object.assign(this.selection, changes);
    this.#write(isChosen && moved);
  }

  #write(moved: boolean): void {
    const hash = fragment({ ...this.selection, site: this.missingSite ?? this.selection.site });
    // A page inside a notebook may have no address of its own.
    if (hash === location.hash || location.protocol === "about:") return;
    if (moved) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
  }

  /** The statistics that tensors of a kind have. */
  statsOf(kind: string): readonly string[] {
    const { stats = [], limited = [] } = this.sites.value ?? {};
    return stats.filter((stat) => limited.find((each) => each.stat === stat)?.kinds.includes(kind) ?? true);
  }

  /** The selected statistic, or where tensors of a kind do not have it, the usual one. */
  statOf(kind: string): string {
    const [{ stat }, stats] = [this.selection, this.statsOf(kind)];
    return stats.length === 0 || stats.includes(stat) ? stat : "rms";
  }

  selectRun(name: string): void {
    // Named tensors of several runs are compared at the same step.
    const anew = this.selection.view === "tensors" ? {} : { step: null, first: null, last: null };
    const { run, beside } = this.selection;
    this.select({ run: name, ...anew, ...(name === beside ? { beside: run } : {}) });
  }

  selectSite(site: string, kind: string | null = this.selection.kind): void {
    this.select({ site, kind });
  }

  selectTrace({ name, step }: TraceEntry): void {
    // A trace without step releases the crosshair, which may stand at the step of another trace.
    this.select({ view: "traces", trace: name, step, ...NOTHING_SELECTED });
  }

  /** Whether the site is another one than the default site of the run. */
  get isSiteChosen(): boolean {
    return this.sites.value !== null && this.selection.site !== firstSite(this.sites.value);
  }

  #loadRuns(): void {
    this.runs.load(this.#listNews >= 0 ? "api/runs" : null, "runs");
  }

  #loadRun(): void {
    const run = this.selection.run;
    void this.#runNews;
    const address = run === null ? null : `api/run/${encodeURIComponent(run)}`;
    this.sites.load(address && `${address}/sites`, `${run}`);
    if (this.width > 0)
      this.timeline.load(address && `${address}/timeline?${screenOf(this)}${smoothOf(this)}`, `${run}`);
  }

  #loadTraces(): void {
    const { run } = this.selection;
    // Other views show only their marks: a request is repeated only when there are more traces.
    if (this.#looksAtTraces) void this.#runNews;
    if (run !== null && (this.#looksAtTraces || this.#traceCount > 0))
      this.traces.load(`api/run/${encodeURIComponent(run)}/traces`, run);
    else this.traces.pause(`${run}`);
  }

  #loadScalar(): void {
    const series = this.#requestedSeries;
    if (this.width === 0) return;
    const [address, identity] = series === null ? ["", ""] : scalarOf(this, series);
    if (series === null || this.#shown !== "charts") this.scalar.pause(identity);
    else this.scalar.load(address, identity);
  }

  #loadHistogram(): void {
    const series = this.#requestedSeries;
    if (this.width === 0) return;
    const [address, identity] = series === null ? ["", ""] : histogramOf(this, series, this.bins || 96);
    if (series === null || this.#shown === "heatmap") this.histogram.pause(identity);
    // In the charts view the height is known with the next frame: an earlier request would be wasted.
    else if (this.bins > 0 || this.#shown !== "charts") this.histogram.load(address, identity);
  }

  /** The series of the charts, null where there is none; evaluated again with every live message of the run. */
  get #requestedSeries(): SeriesEntry | null {
    void this.#runNews;
    return this.selection.run === null || this.#shown === "tensors" ? null : this.series;
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

  /** Select a site at first, or the view of traces in a run without sites, so that the page is never empty. */
  #chooseSite(): void {
    const sites = this.sites.value;
    if (sites === null || sites.run !== this.selection.run) return;
    const requested = this.missingSite ?? this.selection.site;
    if (requested !== null && sites.series.some((entry) => entry.site === requested)) {
      this.missingSite = null;
      this.selection.site = requested;
      return;
    }
    if (sites.series.length === 0 && sites.traces > 0 && untrack(() => this.selection.view) === "charts") {
      this.selection.view = "traces";
      this.#write(false);
    }
    if (requested !== null && sites.series.length === 0) return;
    const chosen = firstSite(sites);
    if (chosen !== null) {
      if (requested === this.#defaultSite) this.#defaultSite = chosen;
      else this.missingSite = requested;
      this.selection.site = chosen;
      this.#write(false);
    }
  }
}

function firstSite({ series }: SiteList): string | null {
  return (series.find((entry) => entry.kind === "output") ?? series[0])?.site ?? null;
}
