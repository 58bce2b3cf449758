// Generated from the Python records by `python -m layerscope.server.wire`. Do not edit.

export type AxisKind = "linear" | "symlog" | "exponent";

/** How many findings of each severity a run has. */
export interface FindingCounts {
  readonly errors: number;
  readonly warnings: number;
  readonly notes: number;
  readonly checked: number;
}

/** One line of the list of runs. */
export interface RunEntry {
  readonly name: string;
  readonly status: string;
  readonly last_step: number | null;
  readonly metrics: readonly string[];
  readonly metric_values: Float64Array;
  readonly sparkline: Float64Array;
  readonly problem: string | null;
  readonly findings: FindingCounts | null;
}

/** The runs that are served. */
export interface RunList {
  readonly folder: string;
  readonly version: string;
  readonly runs: readonly RunEntry[];
}

/** One history that a run holds. */
export interface SeriesEntry {
  readonly series: number;
  readonly rank: number;
  readonly site: string;
  readonly port: string;
  readonly kind: string;
  readonly mode: string;
  readonly context: string;
  readonly dtype: string;
  readonly phase: string;
  readonly local: string;
  readonly shape: readonly number[];
}

/** A statistic that only tensors of some kinds have. */
export interface LimitedStatistic {
  readonly stat: string;
  readonly kinds: readonly string[];
}

/** Everything that can be shown of a run: its series, in the order of first appearance, and the statistics. */
export interface SiteList {
  readonly run: string;
  readonly stats: readonly string[];
  readonly series: readonly SeriesEntry[];
  readonly traces: number;
  readonly formats: readonly string[];
  readonly limited: readonly LimitedStatistic[];
  readonly left_out: number;
}

/** A statistic or metric over the steps: lowest, highest and last value of each column of the screen. */
export interface ScalarView {
  readonly name: string;
  readonly thinned: boolean;
  readonly points: number;
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
  readonly low: Float64Array;
  readonly high: Float64Array;
  readonly last: Float64Array;
  readonly not_finite: Float64Array;
  readonly smooth: Float64Array;
}

/** A note, a warning or a loss of rows at a step. */
export interface EventEntry {
  readonly step: number;
  readonly level: string;
  readonly text: string;
}

/** What is always in sight of a run: its metrics over the steps and what happened. */
export interface Timeline {
  readonly run: string;
  readonly first_step: number | null;
  readonly last_step: number | null;
  readonly metrics: readonly ScalarView[];
  readonly events: readonly EventEntry[];
}

/** One metric of one run in steps of one type. */
export interface MetricCurve {
  readonly run: string;
  readonly type: string;
  readonly view: ScalarView;
}

/** One metric: `group/name` is called by its group and its name. */
export interface MetricChart {
  readonly group: string;
  readonly name: string;
  readonly curves: readonly MetricCurve[];
}

/** The metrics of several runs by group; what one of the runs lacks is just not there. */
export interface MetricsView {
  readonly first_step: number | null;
  readonly last_step: number | null;
  readonly types: readonly string[];
  readonly charts: readonly MetricChart[];
}

/** Everything that was noted, in the order of time. */
export interface NotesView {
  readonly run: string;
  readonly steps: Float64Array;
  readonly times: Float64Array;
  readonly levels: readonly string[];
  readonly texts: readonly string[];
  readonly left_out: number;
}

/** Modules and parameters as a tree, parents before children: columns of its lines. */
export interface NetworkView {
  readonly run: string;
  readonly names: readonly string[];
  readonly depths: readonly number[];
  readonly classes: readonly string[];
  readonly counts: Float64Array;
  readonly total: number;
}

/** Where a number was recorded that a finding rests on. */
export interface EvidenceEntry {
  readonly site: string;
  readonly class_name: string;
  readonly kind: string;
  readonly context: string;
  readonly step: number;
  readonly stat: string;
}

/** One finding of a rule: what, where, since when, why, and what to do. */
export interface FindingEntry {
  readonly rule: string;
  readonly severity: string;
  readonly site: string;
  readonly class_name: string;
  readonly kind: string;
  readonly context: string;
  readonly step: number;
  readonly title: string;
  readonly why: string;
  readonly advice: string;
  readonly consequence: boolean;
  readonly evidence: readonly EvidenceEntry[];
  readonly numbers: Float64Array;
}

/** A rule that could not be applied, and what it lacked. */
export interface NotCheckedEntry {
  readonly rule: string;
  readonly reason: string;
}

/** What is wrong with a run, causes before consequences. */
export interface FindingsView {
  readonly run: string;
  readonly verdict: string;
  readonly counts: FindingCounts;
  readonly checked: number;
  readonly last_step: number | null;
  readonly findings: readonly FindingEntry[];
  readonly looked_for: readonly string[];
  readonly not_checked: readonly NotCheckedEntry[];
}

/** What a number format can hold, and how many elements of each column, or run, it would lose. */
export interface Limits {
  readonly format: string;
  readonly smallest: number;
  readonly smallest_normal: number;
  readonly largest: number;
  readonly to_zero: Float64Array;
  readonly subnormal: Float64Array;
  readonly too_large: Float64Array;
}

/** Histogram over time: how many elements lie in each bin of each column, and what lies outside the bins. */
export interface HistogramView {
  readonly axis: AxisKind;
  readonly points: number;
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
  readonly left: Float64Array;
  readonly right: Float64Array;
  readonly summaries: Float64Array;
  readonly edges: Float64Array;
  readonly ticks: Float64Array;
  readonly counts: Float32Array;
  readonly shades: Uint8Array;
  readonly most: number;
  readonly below: Float64Array;
  readonly above: Float64Array;
  readonly zeros: Float64Array;
  readonly zero_shades: Uint8Array;
  readonly nan: Float64Array;
  readonly pos_inf: Float64Array;
  readonly neg_inf: Float64Array;
  readonly total: Float64Array;
  readonly smallest: Float64Array;
  readonly largest: Float64Array;
  readonly shares: readonly number[];
  readonly quantiles: Float64Array;
  readonly limits: Limits | null;
}

/** From where to where colors go; all None where there is no finite value. */
export interface ColorScale {
  readonly low: number | null;
  readonly high: number | null;
  readonly robust_low: number | null;
  readonly robust_high: number | null;
  readonly abs_low: number | null;
  readonly abs_high: number | null;
}

/** One statistic of all tensors over the steps. Rows stand as the tree of modules is read from top to bottom. */
export interface HeatMapView {
  readonly stat: string;
  readonly thinned: boolean;
  readonly first_steps: Float64Array;
  readonly last_steps: Float64Array;
  readonly left: Float32Array;
  readonly right: Float32Array;
  readonly labels: readonly string[];
  readonly sites: readonly string[];
  readonly ports: readonly string[];
  readonly depths: Float64Array;
  readonly inside: Float64Array;
  readonly own: Float64Array;
  readonly whole: Float64Array;
  readonly cells: Float32Array;
  readonly scale: ColorScale;
}

/** How two runs differ: `first` − `second`, or the base-2 logarithm of their ratio, where both have something. */
export interface DifferenceView {
  readonly first: string;
  readonly second: string;
  readonly ratio: boolean;
  readonly steps_in_common: number;
  readonly steps_of_first: number;
  readonly steps_of_second: number;
  readonly only_in_first: readonly string[];
  readonly only_in_second: readonly string[];
  readonly view: HeatMapView;
}

/** One number of one run over the steps; None with the reason where the run does not have it. */
export interface RunCurve {
  readonly run: string;
  readonly view: ScalarView | null;
  readonly lacking: string;
}

/** One number of several runs. */
export interface Curves {
  readonly name: string;
  readonly runs: readonly RunCurve[];
}

/** The metrics of several runs, and one statistic of the same tensor in each. */
export interface CompareView {
  readonly first_step: number | null;
  readonly last_step: number | null;
  readonly metrics: readonly Curves[];
  readonly tensor: Curves;
}

/** The histogram of one tensor at one step of one run; without a step where the run does not have it. */
export interface StepHistogram {
  readonly run: string;
  readonly step: number | null;
  readonly lacking: string;
  readonly counts: Float64Array;
  readonly numbers: Float64Array;
  readonly extremes: Float64Array;
}

/** Histograms of the same tensor in several runs, on one axis of values. */
export interface HistogramsView {
  readonly axis: AxisKind;
  readonly edges: Float64Array;
  readonly ticks: Float64Array;
  readonly runs: readonly StepHistogram[];
  readonly limits: Limits | null;
}

/** The histogram over time of one tensor of one run; None with the reason where the run does not have it. */
export interface RunOverTime {
  readonly run: string;
  readonly view: HistogramView | null;
  readonly lacking: string;
}

/** Histograms over time of the same tensor in several runs, on one axis of values. */
export interface OverTimeView {
  readonly runs: readonly RunOverTime[];
}

/** The order of one group: flows, places in layers (spots), the links between them, and ways back (lanes). */
export interface GroupOrder {
  readonly group: number;
  readonly flow_tensors: readonly number[];
  readonly flow_sources: readonly number[];
  readonly flow_leaves: readonly number[];
  readonly flow_out_of: readonly number[];
  readonly target_flows: readonly number[];
  readonly target_children: readonly number[];
  readonly target_into: readonly number[];
  readonly spot_children: readonly number[];
  readonly spot_flows: readonly number[];
  readonly layer_sizes: readonly number[];
  readonly layer_spots: readonly number[];
  readonly link_uppers: readonly number[];
  readonly link_lowers: readonly number[];
  readonly link_flows: readonly number[];
  readonly lane_flows: readonly number[];
  readonly lane_targets: readonly number[];
  readonly lane_numbers: readonly number[];
  readonly input_names: readonly string[];
  readonly input_tensors: readonly number[];
  readonly output_names: readonly string[];
  readonly output_tensors: readonly number[];
}

/** All parts of a graph; a part's number is its place in the columns, and part 0 is the whole. */
export interface NestedGraph {
  readonly title: string;
  readonly note: string;
  readonly parents: readonly number[];
  readonly roles: readonly string[];
  readonly names: readonly string[];
  readonly details: readonly string[];
  readonly widths: readonly number[];
  readonly heights: readonly number[];
  readonly title_widths: readonly number[];
  readonly times: readonly number[];
  readonly sites: readonly string[];
  readonly facts: readonly string[];
  readonly opened: readonly number[];
  readonly groups: readonly GroupOrder[];
}

/** Some groups of a graph. */
export interface GroupOrders {
  readonly groups: readonly GroupOrder[];
}

/** A statistic of each part that has it at its last recorded step at or before one, and the scale of the whole run. */
export interface PartNumbers {
  readonly kind: string;
  readonly stat: string;
  readonly mode: string;
  readonly context: string;
  readonly step: number;
  readonly parts: Float64Array;
  readonly steps: Float64Array;
  readonly contexts: readonly string[];
  readonly sites: readonly string[];
  readonly ports: readonly string[];
  readonly values: Float64Array;
  readonly scale: ColorScale;
}

/** One line of the list of traces. */
export interface TraceEntry {
  readonly name: string;
  readonly model: string;
  readonly operations: number;
  readonly values: number;
  readonly gradients: number;
  readonly elapsed_s: number;
  readonly failure: string | null;
  readonly step: number | null;
}

/** The traces saved in a run, oldest first. */
export interface TraceList {
  readonly run: string;
  readonly traces: readonly TraceEntry[];
}

/** Something known of an operation, in words. */
export interface Fact {
  readonly name: string;
  readonly text: string;
}

/** An operation that another one speaks of. */
export interface OperationLink {
  readonly operation: number;
  readonly label: string;
  readonly module: string;
  readonly shape: string;
  readonly argument: string;
}

/** The operations with the most of a field, such as their time. */
export interface TraceRanking {
  readonly field: string;
  readonly total: number;
  readonly operations: readonly OperationLink[];
  readonly values: Float64Array;
}

/** What a trace is made of. */
export interface TraceOverview {
  readonly facts: readonly Fact[];
  readonly rankings: readonly TraceRanking[];
}

/** A line of the call stack, with the code around it where that was kept. */
export interface StackLine {
  readonly file: string;
  readonly line: number;
  readonly function: string;
  readonly first_line: number;
  readonly code: readonly string[];
}

/** One of the modules around something. */
export interface Crumb {
  readonly id: number;
  readonly title: string;
}

/** Everything known of one operation but its value. */
export interface OperationView {
  readonly operation: number;
  readonly operations: number;
  readonly label: string;
  readonly function: string;
  readonly role: string;
  readonly module: string;
  readonly module_class: string;
  readonly site: string;
  readonly shape: readonly number[];
  readonly dtype: string;
  readonly facts: readonly Fact[];
  readonly arguments: readonly Fact[];
  readonly parents: readonly OperationLink[];
  readonly children: readonly OperationLink[];
  readonly passes: readonly OperationLink[];
  readonly stack: readonly StackLine[];
  readonly part: number;
  readonly around: readonly Crumb[];
  readonly has_value: boolean;
  readonly has_gradient: boolean;
  readonly is_stale: boolean;
}

/** Operations that match a search. */
export interface OperationList {
  readonly matches: number;
  readonly operations: readonly OperationLink[];
}

/** Some parts of the graph of a trace: what `NestedGraph` says of each. */
export interface TraceParts {
  readonly parts: readonly number[];
  readonly parents: readonly number[];
  readonly roles: readonly string[];
  readonly names: readonly string[];
  readonly details: readonly string[];
  readonly widths: readonly number[];
  readonly title_widths: readonly number[];
  readonly sites: readonly string[];
  readonly facts: readonly string[];
  readonly operations: readonly number[];
}

/** What is in some groups, beside the modules that are known already, and the order of all that is in them. */
export interface TraceGroups {
  readonly operations: TraceParts;
  readonly groups: readonly GroupOrder[];
}

/** The graph of a trace: its modules, and what is in those that are open at first, or in all if they are few. */
export interface TracePicture {
  readonly title: string;
  readonly count: number;
  readonly opened: readonly number[];
  readonly modules: TraceParts;
  readonly inside: TraceGroups;
}

/** A field of operations, such as their time, by part of the graph. */
export interface TraceNumbers {
  readonly name: string;
  readonly parts: Float64Array;
  readonly values: Float64Array;
}

/** A tensor as a picture: cells of elements, each standing for one or more of them. */
export interface ValueView {
  readonly picture: string;
  readonly pictures: readonly string[];
  readonly shape: readonly number[];
  readonly dtype: string;
  readonly note: string;
  readonly index: readonly number[];
  readonly first_tile: number;
  readonly tiles: number;
  readonly all_tiles: number;
  readonly rows: number;
  readonly columns: number;
  readonly row_step: number;
  readonly column_step: number;
  readonly cells: Float32Array;
  readonly low: Float64Array;
  readonly high: Float64Array;
  readonly range: Float64Array;
  readonly numbers: Float64Array;
  readonly number_names: readonly string[];
}

/** The graph of one iteration. Columns of nodes and of links; a node stands where it stands in every iteration. */
export interface DependencyView {
  readonly width: number;
  readonly height: number;
  readonly names: readonly string[];
  readonly labels: readonly string[];
  readonly seconds: readonly string[];
  readonly details: readonly string[];
  readonly types: readonly string[];
  readonly back: readonly number[];
  readonly boxes: Float64Array;
  readonly has_parents: readonly boolean[];
  readonly has_children: readonly boolean[];
  readonly sources: readonly number[];
  readonly targets: readonly number[];
  readonly thin: readonly boolean[];
  readonly ways: Float64Array;
  readonly way_sizes: readonly number[];
}

/** The values of a tensor, neuron by neuron: a column for each sample that was kept. */
export interface Neurons {
  readonly samples: readonly number[];
  readonly shape: readonly number[];
  readonly dtype: string;
  readonly shown: number;
  readonly numbers: Float64Array;
  readonly means: Float64Array;
  readonly picture: ValueView | null;
}

/** What a run has of a selection; where it lacks something the nearest is shown, and `differences` says so. */
export interface TensorPanel {
  readonly run: string;
  readonly problem: string;
  readonly differences: readonly string[];
  readonly type: string;
  readonly step_type: string;
  readonly step: number;
  readonly iteration: number;
  readonly node: string;
  readonly role: string;
  readonly sample: number | null;
  readonly loss: string | null;
  readonly batch: number;
  readonly reason: string;
  readonly types: readonly string[];
  readonly steps: Float64Array;
  readonly iterations: readonly number[];
  readonly roles: readonly string[];
  readonly shapes: readonly string[];
  readonly samples: readonly number[];
  readonly categories: readonly string[];
  readonly losses: readonly string[];
  readonly graph: DependencyView | null;
  readonly site: string;
  readonly port: string;
  readonly kind: string;
  readonly stat_names: readonly string[];
  readonly stats: Float64Array;
  readonly neurons: Neurons | null;
  readonly lacking: string;
}

/** The same selection in one run or several, and one statistic of it over the steps in each of them. */
export interface TensorsView {
  readonly panels: readonly TensorPanel[];
  readonly stat: string;
  readonly curves: Curves;
  readonly custom_view: string;
}

/** One tensor of the selected step, a row for each sample. */
export interface SampleColumn {
  readonly key: string;
  readonly statistic: string;
  readonly shown: number;
  readonly numbers: Float64Array;
}

/** The samples of one run: a table of the selected step, and points for the first two tensors in all steps. */
export interface RunSamples {
  readonly run: string;
  readonly problem: string;
  readonly step: number;
  readonly samples: readonly number[];
  readonly categories: readonly string[];
  readonly columns: readonly SampleColumn[];
  readonly x: Float64Array;
  readonly y: Float64Array;
  readonly point_steps: Float64Array;
  readonly point_samples: Float64Array;
  readonly steps: number;
}

/** The same tensors, sample by sample, in one run or several. */
export interface SamplesView {
  readonly keys: readonly string[];
  readonly choices: readonly string[];
  readonly runs: readonly RunSamples[];
}

/** One thing that the user's view gave back. */
export interface CustomItem {
  readonly kind: string;
  readonly text: string;
  readonly columns: readonly string[];
  readonly cells: readonly string[];
  readonly weights: Float64Array;
}

/** What the user's view made of a selection, or why it made nothing. */
export interface CustomResult {
  readonly file: string;
  readonly items: readonly CustomItem[];
  readonly problem: string;
  readonly seconds: number;
}

/** Another stamp than before means that the user's file was saved again. */
export interface CustomSaved {
  readonly stamp: string;
}

/** Sent over the live channel when a run has new rows, another status, appeared or vanished. */
export interface Change {
  readonly run: string;
  readonly status: string;
  readonly revision: string;
}

/** Why a request was refused, as JSON, with a status of 4xx or 5xx. */
export interface Problem {
  readonly problem: string;
}
