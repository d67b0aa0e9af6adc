// Events worth a look, and those of preparation and zygote for the timeline.
import { get, ofRun, report } from "./api.js";
import { el, empty, replace } from "./dom.js";
import { bytes, clockTime, figure, seconds, whole } from "./format.js";

const MOST = 200;
const WORTH = ["attempt", "start", "restart", "restart.none", "stall", "hang.over", "memory.low", "gpu.silent", "control", "evolution.missing", "loss.bad", "early_stop", "train.plan", "train.result", "export.choice", "zygote.ready"];
const SPANS = { prepare: "prepare", "zygote.import": "zygote_import", "zygote.build": "zygote_build" };

export class Events {
  constructor(host, run) {
    this.host = host;
    this.run = run;
    this.cursor = "";
    this.shown = [];
    this.spans = new Map();
    this.memory = {};
    this.isBusy = false;
    replace(host, empty("No events yet", "Restarts, stalls, errors and controls are listed here."));
  }

  // The last ones at first, then what has come since; `goes`: the run has not passed its start.
  async update(goes = false) {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      if (!this.cursor) await this.first();
      else await this.more();
      if (goes || !this.hasStart) await this.start();
      this.hasStart = !goes;
    } catch {
      return;
    } finally {
      this.isBusy = false;
    }
    this.draw();
  }

  async first() {
    const path = ofRun(this.run, "events");
    const [marks, errors] = await Promise.all(["mark", "error"].map((kind) => get(path, { last: MOST, kind })));
    this.cursor = errors.cursor;
    [...marks.events, ...errors.events].sort((a, b) => a.t - b.t).forEach((event) => this.take(event));
  }

  async more() {
    if (report) return;
    for (let pages = 0; pages < 8; pages += 1) {
      const said = await get(ofRun(this.run, "events"), { after: this.cursor, limit: 1000 });
      said.events.forEach((event) => this.take(event));
      const moved = said.cursor && said.cursor !== this.cursor;
      this.cursor = said.cursor || this.cursor;
      if (!moved || !said.more) return;
    }
  }

  // What was before the ranks lies at the beginning of the files.
  async start() {
    for (const name of [...Object.keys(SPANS), "mem.post_model"]) {
      const said = await get(ofRun(this.run, "events"), { name, limit: 6 });
      said.events.forEach((event) => this.spanOf(event));
    }
  }

  take(event) {
    this.spanOf(event);
    const isWorth = event.kind === "error" || (event.kind === "mark" && WORTH.includes(event.name));
    if (!isWorth) return;
    this.shown.push(event);
    if (this.shown.length > MOST) this.shown.shift();
  }

  spanOf(event) {
    if (SPANS[event.name] && (event.kind === "start" || event.kind === "end")) this.span(event);
    if (event.name === "mem.post_model" && event.rank === null) this.memory.zygote = event.pss_anon_bytes;
  }

  span(event) {
    const key = `${event.name} ${event.pid} ${event.what || ""} ${event.attempt}`;
    const one = this.spans.get(key) || { phase: SPANS[event.name], start_t: event.t, end_t: null };
    if (event.kind === "end") Object.assign(one, { start_t: event.t - (event.duration_s || 0), end_t: event.t });
    this.spans.set(key, one);
  }

  // The rows above those of the ranks.
  get startup() {
    const of = (phases) => [...this.spans.values()].filter((span) => phases.includes(span.phase)).sort((a, b) => a.start_t - b.start_t);
    const prepare = of(["prepare"]);
    const widest = prepare.filter((span) => !prepare.some((other) => other !== span && other.start_t <= span.start_t && (other.end_t || Infinity) >= (span.end_t || Infinity)));
    const rows = [{ name: "Prepare", spans: widest, memory_bytes: null }, { name: "Zygote", spans: of(["zygote_import", "zygote_build"]), memory_bytes: this.memory.zygote ?? null }];
    return rows.filter((row) => row.spans.length);
  }

  draw() {
    const key = `${this.shown.length} ${this.cursor}`;
    if (!this.shown.length || key === this.drawn) return;
    this.drawn = key;
    replace(this.host, this.shown.slice().sort((a, b) => b.t - a.t).map((event) => el(event.kind === "error" ? "div.event.error" : "div.event", {}, el("time", { datetime: new Date(event.t * 1000).toISOString() }, clockTime(event.t)), el("b", {}, event.name), el("span", {}, words(event)))));
  }
}

const SKIP = new Set(["v", "t", "mono", "node", "attempt", "rank", "pid", "kind", "name", "ids", "samples", "traceback"]);

const MEANINGS = { attempt: "ranks are started", "zygote.ready": "the zygote has imported what all ranks share", start: "how ranks are started", "hang.over": "ranks go on: that report is taken back" };

function words(event) {
  const who = event.rank === null || event.rank === undefined ? "" : `rank ${event.rank}: `;
  const said = event.said || event.text || event.waiting || event.why || event.title;
  if (said) return who + said;
  const told = Object.entries(event).filter(([key, value]) => !SKIP.has(key) && value !== null && value !== "" && typeof value !== "object");
  return who + [MEANINGS[event.name], ...told.map(([key, value]) => named(key, value))].filter(Boolean).join(", ");
}

function named(key, value) {
  const isRate = key.endsWith("per_s");
  const name = (isRate ? key : key.replace(/_(s|bytes)$/, "")).replaceAll("_", " ").replace("tokens per s", "tokens/s");
  if (typeof value === "boolean") return value ? name : `not ${name}`;
  if (key.endsWith("_s") && !isRate) return `${name} ${seconds(value)}`;
  if (key.endsWith("_bytes")) return `${name} ${bytes(value)}`;
  return `${name} ${typeof value === "number" ? (Number.isInteger(value) ? whole(value) : figure(value)) : value}`;
}
