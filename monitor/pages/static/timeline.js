// The start-up of a run: one row per rank from its start to training, and its memory beside the limit.
import { el, replace, svg } from "./dom.js";
import { bytes, NONE, seconds } from "./format.js";

// Phase -> what it is called, and in words. The order is that in which a rank goes through them.
export const PHASES = {
  prepare: ["Preparation", "model and data are made ready, before any rank is started"],
  zygote_import: ["Shared import", "heavy libraries, once for all ranks"],
  zygote_build: ["Shared build", "the model, built once for all ranks"],
  waiting: ["Waiting at the gate", "until memory is there for one more"],
  import: ["Import", "heavy libraries"],
  load: ["Load", "the model is read and put on its device"],
  all_loaded: ["Waiting for the others", "until every rank has left the gate"],
  process_group: ["Process group", "init_process_group, and a first barrier"],
  ddp: ["DDP", "the DistributedDataParallel constructor"],
};
const ROW = 26;
const BAR = 14;
const TOP = 22;
const NAME_WIDTH = 76;
const MEMORY_WIDTH = 236;
const GAP = 14;

export class Timeline {
  // host: an element; it gets a legend, the picture, and the same as a table.
  constructor(host) {
    this.key = el("ul.phase-key", { "aria-hidden": "true" });
    this.picture = el("div.timeline-picture", {});
    this.table = el("tbody", {});
    const heads = ["Row", "Phase", "Began after", "Took"].map((text, at) => el(at > 1 ? "th.n" : "th", { scope: "col" }, text));
    const whole = el("table", {}, el("thead", {}, el("tr", {}, heads)), this.table);
    this.more = el("details", {}, el("summary", {}, "As a table"), el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Start-up as a table" }, whole));
    host.append(this.key, this.picture, this.more);
    this.drawn = "";
    new ResizeObserver(() => this.draw()).observe(this.picture);
    this.rows = [];
  }

  // rows: [{name, spans: [{phase, start_t, end_t}], memory_bytes, limit_bytes, state}]
  set(rows, { began_t, now, isLive, memoryTitle }) {
    Object.assign(this, { rows, began_t, now, isLive, memoryTitle });
    this.draw();
  }

  draw() {
    const width = Math.max(280, this.picture.clientWidth);
    const { from, to } = this.extent();
    const told = JSON.stringify([width, this.rows, from, Math.round(to * 10)]);
    if (!this.rows.length || told === this.drawn) return;
    this.drawn = told;
    const narrow = width < 560;
    const memory = narrow ? 96 : MEMORY_WIDTH;
    const room = { left: NAME_WIDTH, right: width - memory - GAP, from, to, began: this.extent().began };
    const height = TOP + this.rows.length * ROW + 4;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": this.summary() });
    picture.append(hatches(), ...axis(room, height), svg("text.label", { x: room.right + GAP, y: 12 }, narrow ? "Memory" : this.memoryTitle));
    this.rows.forEach((row, index) => picture.append(this.row(row, index, room, { at: room.right + GAP, width: memory, narrow })));
    replace(this.picture, picture);
    this.list(this.extent().began);
    this.showKey();
  }

  extent() {
    const spans = this.rows.flatMap((row) => row.spans);
    const from = Math.min(this.began_t || Infinity, ...spans.map((span) => span.start_t));
    const open = spans.some((span) => span.end_t === null);
    const to = Math.max(from + 0.5, ...spans.map((span) => span.end_t || span.start_t), open && this.isLive ? this.now : 0);
    if (!Number.isFinite(from)) return { from: 0, to, began: 0 };
    // A long preparation is cut, so that the ranks keep their room; its bar still says how long it was.
    const prepared = Math.max(0, ...spans.filter((span) => span.phase === "prepare").map((span) => span.end_t || 0));
    const rest = to - prepared;
    return { from: prepared && rest > 0.3 ? Math.max(from, prepared - rest * 0.25) : from, to, began: from };
  }

  row(row, index, room, memory) {
    const top = TOP + index * ROW;
    const group = svg("g", {});
    if (index % 2) group.append(svg("rect.stripe", { x: 0, y: top - 2, width: memory.at + memory.width, height: ROW }));
    group.append(svg("text.name", { x: 0, y: top + BAR }, row.name));
    const scale = (room.right - room.left) / (room.to - room.from);
    for (const span of row.spans) {
      const end = span.end_t || (this.isLive ? this.now : span.start_t);
      const isCut = span.start_t < room.from;
      if (end < room.from) continue;
      const x = room.left + Math.max(0, span.start_t - room.from) * scale;
      const wide = Math.max(1.5, (end - Math.max(span.start_t, room.from)) * scale);
      const bar = svg("g", {}, svg("title", {}, `${row.name}: ${PHASES[span.phase] ? PHASES[span.phase][0] : span.phase}, ${seconds(end - span.start_t)}${span.end_t ? "" : " so far"}, ${seconds(span.start_t - room.began)} after the start`));
      bar.append(svg(`rect.span.p-${span.phase}${span.end_t ? "" : ".open"}`, { x, y: top + 3, width: wide, height: BAR, rx: Math.min(2, wide / 2) }));
      const text = `${isCut ? "‹ " : ""}${seconds(end - span.start_t)}`;
      if (wide > text.length * 6.6 + 8) bar.append(svg(`text.inside.on-${span.phase}`, { x: x + 5, y: top + BAR }, text));
      group.append(bar);
    }
    group.append(...gauge(row, top, memory));
    return group;
  }

  summary() {
    const from = this.extent().began;
    return this.rows.map((row) => {
      const last = row.spans[row.spans.length - 1];
      return `${row.name}: ${row.spans.length ? `${PHASES[last.phase] ? PHASES[last.phase][0] : last.phase}${last.end_t ? ` done after ${seconds(last.end_t - from)}` : " now"}` : row.state || "not started"}`;
    }).join("; ");
  }

  list(from) {
    replace(this.table, this.rows.flatMap((row) => row.spans.map((span) => el("tr", {}, el("td", {}, row.name), el("td", {}, PHASES[span.phase] ? PHASES[span.phase][0] : span.phase), el("td.n", {}, seconds(span.start_t - from)), el("td.n", {}, span.end_t ? seconds(span.end_t - span.start_t) : "still")))));
  }

  showKey() {
    const there = new Set(this.rows.flatMap((row) => row.spans.map((span) => span.phase)));
    const told = Object.keys(PHASES).filter((phase) => there.has(phase));
    if (this.told === told.join()) return;
    this.told = told.join();
    replace(this.key, told.map((phase) => {
      const sign = svg("svg", { width: 16, height: 12, "aria-hidden": "true" }, svg(`rect.span.p-${phase}`, { width: 16, height: 12, rx: 2 }));
      return el("li", { title: PHASES[phase][1] }, sign, PHASES[phase][0]);
    }));
  }
}

// Waiting is hatched: it can be told from work without colours.
function hatches() {
  const lines = (name) => svg("pattern", { id: name, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg(`rect.${name}-ground`, { width: 6, height: 6 }), svg(`rect.${name}-line`, { width: 2, height: 6 }));
  return svg("defs", {}, lines("hatch-wait"), lines("hatch-join"));
}

function axis(room, height) {
  const span = room.to - room.from;
  const few = Math.max(2, Math.floor((room.right - room.left) / 90));
  const step = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400].find((one) => span / one <= few) || span;
  const made = [];
  const skipped = room.from - room.began;
  for (let at = Math.ceil(skipped / step - 1e-9) * step; at <= skipped + span + 1e-9; at += step) {
    const x = room.left + ((at - skipped) / span) * (room.right - room.left);
    made.push(svg("line.grid", { x1: x, x2: x, y1: TOP - 4, y2: height }));
    const text = at === 0 ? "0" : seconds(at).replace(".0 s", " s").replace(" 00 s", "");
    if (x + 8 + text.length * 6.5 < room.right + GAP) made.push(svg("text.tick", { x: x + 3, y: 12 }, text));
  }
  return made;
}

function gauge(row, top, memory) {
  const bar = memory.narrow ? 0 : 84;
  const made = [];
  const used = row.memory_bytes;
  const limit = row.limit_bytes;
  const said = used === null || used === undefined ? NONE : limit && !memory.narrow ? `${bytes(used)} of ${bytes(limit)}` : bytes(used);
  if (bar && limit) {
    const share = Math.min(1, (used || 0) / limit);
    const level = share > 0.95 ? ".full" : share > 0.8 ? ".high" : "";
    made.push(svg("rect.gauge", { x: memory.at, y: top + 3, width: bar, height: BAR, rx: 2 }), svg(`rect.gauge-used${level}`, { x: memory.at, y: top + 3, width: bar * share, height: BAR, rx: 2 }));
  }
  made.push(svg("text.figure", { x: memory.at + (bar && limit ? bar + 8 : 0), y: top + BAR }, said));
  return made.concat(svg("title", {}, `${row.name}: ${said}`));
}

