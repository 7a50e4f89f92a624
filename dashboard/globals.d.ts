// Types of the dashboard's scripts, for their check alone: nothing of it is shipped.
//
// The scripts are no modules: a page takes them one after the other, each puts what it
// makes into one name of the window, and those that are tested outside a browser take
// each other by `require`. For the checker, each also exports what it puts there; the
// last part of this file says under which name.

// -- what the server sends; see queries.py, and meta_of beside it

interface View {
  t0: number;
  t1: number;
}

interface SeriesSpec {
  row: number;
  name: string;
  colour: string;
}

interface RankInfo {
  rank: number;
  rows: number[];
  exposed_share: number | null;
  ended: { at: number; words: string } | null; // where the end is marked
}

interface Minimap {
  level: number;
  exposed: number[];
  compute: number[];
  image?: HTMLCanvasElement; // as it was painted last, in that theme
  theme?: Theme;
}

/** Its number, begin, end and length; of several the longest's. */
type StepBar = [step: number, start: number, end: number, length: number];

interface Steps {
  count: number;
  usual: number;
  bars: StepBar[];
}

interface FirstView extends View {
  step: number | null;
}

interface Meta {
  id: string;
  label: string;
  fingerprint: string;
  end: number;
  level: number;
  series: SeriesSpec[];
  used: number[];
  units: string[];
  ranks: RankInfo[];
  memory: boolean;
  minimap: Minimap;
  revision: number;
  live: boolean;
  steps: Steps;
  start: FirstView | null;
}

/** A run that is still being read answers with this instead. */
interface StillLoading {
  loading?: string;
}

interface Revision extends StillLoading {
  revision: number;
  live: boolean;
}

/** A rectangle in a row: a span, or the part of one that its series shows. */
interface Slice {
  rank: number;
  series: number;
  start: number;
  end: number;
  span: number;
  unit: number;
}

interface SlicesUnder {
  marks: Slice[];
  count: number;
  busy: number;
}

interface NearestSlice {
  mark: Slice | null;
}

interface FoundSlice extends NearestSlice {
  total: number;
  at: number; // the place of the slice among them, from 1 on
}

/** A stretch that a finding is about. */
type Lit = [rank: number, start: number, end: number];

interface AreaSums {
  series: [rank: number, series: number, busy: number, started: number][];
  largest: [unit: number, ns: number][];
}

/** A span of the same unshard or reduction, or of the same collective elsewhere. */
interface RelatedSpan {
  rank: number;
  row: number;
  kind: string;
  start: number;
  end: number;
  span: number;
}

type Fact = [name: string, kind: string, value: string | number];

interface Details {
  title: string;
  start?: number | null;
  end?: number | null;
  causes?: [cause: string, ns: number][];
  first?: boolean;
  facts: Fact[];
  flow: RelatedSpan[];
  peers: RelatedSpan[];
  others?: number; // ranks that were not looked at
}

// -- opened lanes; see opened_lanes.py

/** The events of one thread or stream at one depth, those in a window; ends ascend. */
interface LaneLine {
  key: string;
  label: string;
  start: number[];
  end: number[];
  event: number[];
  count: number[]; // that it stands for
  name: number[];
  cat: number[];
}

/** Why a rank has no events to be shown, or how far the reading of them is. */
interface NoEvents {
  why?: string;
  reading?: string;
}

interface LaneWindow extends View {
  pixel: number;
}

interface LaneAnswer extends NoEvents, Partial<LaneWindow> {
  rows?: LaneLine[];
  more?: number;
  names?: Record<string, string>;
}

/** As much as a picture needs of an event. */
interface TraceEvent {
  event: number;
  start: number;
  end: number;
  key: string; // of its line
  kind: string;
}

interface TraceEventAt extends TraceEvent {
  rank: number;
  title: string;
  lanes: number[]; // under which it can be seen
}

interface EventDetails extends TraceEventAt, NoEvents {
  place: string;
  arguments: Fact[];
  within: TraceEventAt[];
  launch: TraceEventAt[];
}

interface BesideEvent extends NoEvents {
  event: TraceEventAt | null;
}

interface FoundEvent extends BesideEvent {
  at: number; // its place among all, from 1 on
  total: number;
}

interface NoCurve {
  curve: null;
}

interface MemoryCurve {
  curve: string;
  low: number[];
  high: number[];
  top: number;
  peak: { time: number; bytes: number };
}

interface LiveUnit {
  unit: string;
  bytes: number | null;
}

// -- tiles; see [Note: Tiles] in tiles.py

interface BinsBlock {
  series: number;
  count: number;
  shares: Uint8Array;
  span?: undefined;
}

interface SlicesBlock {
  series: number;
  count: number;
  shares?: undefined;
  span: Uint32Array;
  from: Uint16Array;
  to: Uint16Array;
  unit: Uint16Array;
  edges: Uint8Array;
}

type Block = BinsBlock | SlicesBlock;

interface Tile {
  level: number;
  index: number;
  width: number;
  start: number;
  blocks: Map<number, Block[]>; // by rank
  end: number; // within the answer
}

/** Those that came with the page. */
interface GivenTiles {
  tiles: Tile[];
  ranks: number[];
  condensed: boolean;
}

/** A tile that came with the page, or with an answer. */
interface GivenTile {
  tile: Tile;
  ranks: number[];
  condensed: boolean;
}

interface KeptTile {
  tile: Tile;
  blocks: Block[];
}

/** Of one rank. */
interface Want {
  source: DataSource;
  rank: number;
  condensed: boolean;
  level: number;
  index: number;
}

/** What one request asks for: `count` tiles from `index` on. */
interface WantGroup {
  source: DataSource;
  ranks: number[];
  condensed: boolean;
  level: number;
  index: number;
  count: number;
}

interface KeptCurve {
  part: NoCurve | MemoryCurve;
  width: number;
  start: number;
}

// -- where data comes from

interface DataSource {
  id: string;
  meta: Meta; // there once load() has answered
  offset: number;
  only?: number[] | null;
  load(say?: (text: string) => void): Promise<Meta>;
  revision?(): Promise<Revision>;
  tiles(level: number, index: number, count: number, ranks: number[], condensed: boolean,
    signal?: AbortSignal): Promise<Tile[]>;
  area(t0: number, t1: number, ranks: number[]): Promise<AreaSums>;
  under(rank: number, row: number, t0: number, t1: number, signal?: AbortSignal): Promise<SlicesUnder>;
  neighbour(rank: number, row: number, time: number, forward: boolean): Promise<NearestSlice>;
  nextExposed(ranks: number[], time: number, forward: boolean, least: number): Promise<NearestSlice>;
  find(ranks: number[], units: number[], time: number, forward: boolean): Promise<FoundSlice>;
  details(rank: number, series: number, span: number): Promise<Details>;
  memory(rank: number, level: number, index: number, count: number): Promise<NoCurve | MemoryCurve>;
  live(rank: number, time: number): Promise<LiveUnit[]>;
  lit?(finding: number): Promise<Lit[]>;
  lane?(rank: number, row: number, window: LaneWindow): Promise<LaneAnswer>;
  event?(rank: number, event: number): Promise<EventDetails>;
  beside?(rank: number, event: number, forward: boolean): Promise<BesideEvent>;
  findEvent?(ranks: number[], text: string, at: number, time: number, forward: boolean): Promise<FoundEvent>;
  lights?: Record<string, Lit[]>;
}

/** One series of one rank, as a page carries it; see standalone pages in Python. */
interface Columns {
  rank: number;
  series: number;
  start: Float64Array;
  length: Float64Array;
  unit: Int32Array;
  span: Float64Array;
  starts: Float64Array;
  extra: Record<string, Float64Array>;
}

interface SummedColumns extends Columns {
  total: Float64Array; // busy before each slice
}

interface ColumnsLayout {
  rank: number;
  series: number;
  count: number;
  widths: number[];
  steps?: number[];
  starts?: number;
  extra?: [name: string, width: number, first: number][];
}

interface MemorySamples {
  curve: string;
  time: number[];
  value: number[];
}

// -- what the timeline's parts tell each other

type Pen = CanvasRenderingContext2D;
type Theme = "light" | "dark";
type Ink = "background" | "panel" | "lane" | "line" | "grid" | "text" | "faint" | "exposed"
  | "memory" | "memoryFill" | "cursor" | "area" | "select" | "veil" | "bar";
type RowName = "EXPOSED" | "COMPUTE" | "ALL_GATHER" | "REDUCE_SCATTER" | "ALL_REDUCE"
  | "OTHER_COMM" | "COPIES" | "HOST" | "UNSHARDED_ROOT" | "UNSHARDED_EVEN" | "UNSHARDED_ODD"
  | "STEP" | "MICRO_BATCH";
type TileNumber = "magic" | "bins" | "maxSlices" | "minLevel" | "noUnit" | "binsMode"
  | "slicesMode" | "fromLeft" | "toRight";

/** What the scripts share with Python; see settings.py. */
interface Settings {
  colours: Record<Theme, Record<string, string>>;
  inks: Record<Theme, Record<Ink, string>>;
  causes: Record<string, string>;
  waits: string;
  rows: Record<RowName, number>;
  rowWords: Record<number, string>;
  condensedFrom: number;
  mostTiles: number;
  tile: Record<TileNumber, number>;
}

type Timeline = import("./fsdpdoctor_dashboard/timeline/timeline.js").FsdpTimeline;

interface TimelineOptions {
  sources: DataSource[];
  theme?: Theme;
  urlState?: boolean;
  perfetto?: string;
  start?: View;
  first?: GivenTiles | null;
  onView?: (view: View) => void;
  onSelect?: (slice: Slice) => void;
  onArea?: (area: [number, number]) => void;
}

interface Box {
  row: number;
  y: number;
  height: number;
  label: string;
  lane?: OpenLane; // that it stands under
  line?: LaneLine;
}

interface OpenLane extends LaneWindow {
  row: number;
  lines: LaneLine[];
  words: string; // what is said instead
  names: Record<string, string>;
  more: number; // lines that are not shown
  asking: boolean;
  known: Promise<void>;
  sought?: { text: string; names: Record<string, string>; ids: Set<number> };
}

interface SelectedEvent {
  track: Track;
  event: TraceEvent;
  details: EventDetails | null;
}

interface Track {
  key: string;
  source: DataSource;
  rank: number;
  info: RankInfo;
  offset: number; // shows the source's time t at t + offset
  label: string;
  rows: number[];
  collapsed: boolean;
  pinned: boolean;
  small: boolean; // a line, and not in full
  y: number;
  height: number;
  boxes: Box[];
  level: number; // of the tiles that it was last painted from
  indices: number[] | null;
  open: Map<number, OpenLane>; // by row
}

interface Place {
  x: number;
  y: number;
  time: number;
  zone: "minimap" | "rulers" | "corner" | "gutter" | "plot" | "memory";
  track: Track | null;
  box: Box | null;
}

interface Hover extends Place {
  unit: number;
}

interface Drag {
  kind: "minimap" | "step" | "none" | "pan" | "area";
  place: Place;
  view: View;
  moved: boolean;
}

interface Found extends SlicesUnder, View {}

interface Selected {
  track: Track;
  slice: Slice;
  details: Details | null;
}

/** What a raster says of a slice that has room for more than its colour, in pixels. */
interface RasterSlice {
  series: number;
  span: number;
  unit: number;
  from: number;
  to: number;
}

interface WideSlice extends RasterSlice {
  track: Track;
  box: Box;
}

type TipLine = [text: string, name?: string];

interface AreaOfSource {
  source: DataSource;
  ranks: number[];
  found: AreaSums;
}

interface Ticks {
  step: number;
  times: number[];
}

interface Band {
  span: number;
  start: number;
  end: number;
}

/** Steps that were not recorded. */
interface Gap {
  start: number;
  end: number;
  first: number;
  last: number;
}

// -- the page

interface RunOfPage {
  id: string;
  offset?: number;
  ranks?: number[] | null;
}

interface TimelineProps {
  id?: string;
  base: string;
  runs?: RunOfPage[];
  theme?: Theme;
  urlState?: boolean;
  perfetto?: string;
  start?: View;
  jump?: View & { rank: number; run?: string };
  setProps?: (changed: Record<string, unknown>) => void;
}

interface Ref<T> {
  current: T;
}

/** As much of Dash's React as is used. */
interface React {
  useRef<T>(value: T): Ref<T>;
  useEffect(effect: () => void | (() => void), depends: unknown[]): void;
  createElement(tag: string, properties: Record<string, unknown>): unknown;
}

interface FirstPaint {
  take(runs: RunOfPage[] | undefined, place: HTMLElement): Timeline | null;
}

// -- the names in the window

declare var module: { exports: unknown } | undefined;
declare var React: React;
declare var dash_clientside: Record<string, unknown> | undefined;
declare var fsdpdoctor_dashboard: Record<string, unknown> | undefined;
declare var fsdpTimeline: Timeline | undefined; // the one of this page
declare var fsdpFirstPaint: FirstPaint | null | undefined;

/** How a table is sorted: by which column, and whether smallest first. */
interface Order {
  at: number;
  up: boolean;
}

declare var Plotly: { relayout(graph: Element, change: object): void } | undefined; // Dash's

declare var fsdpPage: {
  sort(table: HTMLTableElement, order: Order): void;
  filter(input: HTMLInputElement): void;
};

declare var fsdpSettings: Settings;
declare var fsdpTiles: typeof import("./fsdpdoctor_dashboard/timeline/data/tiles.js");
declare var fsdpFormat: typeof import("./fsdpdoctor_dashboard/timeline/format.js");
declare var fsdpLayout: typeof import("./fsdpdoctor_dashboard/timeline/drawing/layout.js");
declare var fsdpCanvas: typeof import("./fsdpdoctor_dashboard/timeline/drawing/canvas.js");
declare var fsdpRaster: typeof import("./fsdpdoctor_dashboard/timeline/drawing/raster.js");
declare var fsdpLoader: typeof import("./fsdpdoctor_dashboard/timeline/data/loader.js");
declare var fsdpDataSource: typeof import("./fsdpdoctor_dashboard/timeline/data/data_source.js");
declare var fsdpFirstView: typeof import("./fsdpdoctor_dashboard/timeline/data/first_view.js");
declare var fsdpTracks: typeof import("./fsdpdoctor_dashboard/timeline/drawing/tracks.js");
declare var fsdpLocalSource: typeof import("./fsdpdoctor_dashboard/timeline/data/local_source.js");
declare var FsdpAddress: typeof import("./fsdpdoctor_dashboard/timeline/controls/address.js").FsdpAddress;
declare var FsdpBookmarks: typeof import("./fsdpdoctor_dashboard/timeline/controls/bookmarks.js").FsdpBookmarks;
declare var FsdpDetailsPanel: typeof import("./fsdpdoctor_dashboard/timeline/controls/details_panel.js").FsdpDetailsPanel;
declare var FsdpFollower: typeof import("./fsdpdoctor_dashboard/timeline/controls/follow.js").FsdpFollower;
declare var FsdpKeys: typeof import("./fsdpdoctor_dashboard/timeline/controls/keys.js").FsdpKeys;
declare var FsdpMemory: typeof import("./fsdpdoctor_dashboard/timeline/drawing/memory.js").FsdpMemory;
declare var FsdpMinimap: typeof import("./fsdpdoctor_dashboard/timeline/drawing/minimap.js").FsdpMinimap;
declare var FsdpMouse: typeof import("./fsdpdoctor_dashboard/timeline/controls/mouse.js").FsdpMouse;
declare var FsdpOpenedLanes: typeof import("./fsdpdoctor_dashboard/timeline/data/opened_lanes.js").FsdpOpenedLanes;
declare var FsdpOpenedRows: typeof import("./fsdpdoctor_dashboard/timeline/drawing/opened_rows.js").FsdpOpenedRows;
declare var FsdpTraceEvents: typeof import("./fsdpdoctor_dashboard/timeline/controls/trace_events.js").FsdpTraceEvents;
declare var FsdpOverlay: typeof import("./fsdpdoctor_dashboard/timeline/drawing/overlay.js").FsdpOverlay;
declare var FsdpRows: typeof import("./fsdpdoctor_dashboard/timeline/drawing/rows.js").FsdpRows;
declare var FsdpRulers: typeof import("./fsdpdoctor_dashboard/timeline/drawing/rulers.js").FsdpRulers;
declare var FsdpSelection: typeof import("./fsdpdoctor_dashboard/timeline/controls/selection.js").FsdpSelection;
declare var FsdpSurface: typeof import("./fsdpdoctor_dashboard/timeline/drawing/surface.js").FsdpSurface;
declare var FsdpUnknown: typeof import("./fsdpdoctor_dashboard/timeline/drawing/unknown.js").FsdpUnknown;
declare var FsdpTimeline: typeof import("./fsdpdoctor_dashboard/timeline/timeline.js").FsdpTimeline;
declare var fsdpViewer: unknown;
declare var FsdpToolbar: typeof import("./fsdpdoctor_dashboard/timeline/controls/toolbar.js").FsdpToolbar;
