// Series of one run: fetched whole once, then only what has come since the cursor.
import { get, ofRun, report } from "./api.js";
import { num } from "./format.js";

const POINTS = 1000; // about as many as a chart has pixels
const WHOLE_S = 10; // after which the server is asked, whatever the stream has told
const MOST = 3 * POINTS; // then the server is asked for a smaller picture

// Of each name, series of single ranks, GPUs or sets (NAME@KEY) are asked for as well.
export class Metrics {
  constructor(run, names) {
    this.run = run;
    this.asked = names.flatMap((name) => [name, `${name}@*`]).join(",");
    this.range = null;
    this.read_t = 0;
    this.isBehind = false; // the stream told something that may not be in the answer which is awaited
    this.isVoid = false; // all has to be fetched anew, whatever is there or awaited
    this.clear();
  }

  clear() {
    this.series = new Map();
    this.cursor = "";
    this.exact = true;
    this.resumes = [];
    this.indexed = null;
    this.task = null;
  }

  // Shows only steps `from` to `to`, exactly where the server can; null for all.
  async zoom(from, to) {
    this.range = from === null ? null : [Math.max(0, Math.floor(from)), Math.ceil(to)];
    this.isVoid = true;
    await this.update();
  }

  // Brings the series up to date. Only one request at a time; a second caller waits for the first.
  async update() {
    if (this.task) return this.task;
    this.task = this.ask().finally(() => {
      this.task = null;
    });
    return this.task;
  }

  async ask() {
    do {
      if (this.isVoid) this.cursor = ""; // until there is an answer
      this.isVoid = this.isBehind = false;
      this.read_t = Date.now() / 1000;
      await (this.cursor ? this.more() : this.all());
    } while (this.isVoid); // since it was asked
  }

  async all() {
    const asked = { series: this.asked, points: POINTS };
    const range = this.range;
    if (range) Object.assign(asked, { from_step: range[0], to_step: range[1] });
    const said = await get(ofRun(this.run, "metrics"), asked);
    if (range !== this.range) return; // and all is asked for once more
    this.series = new Map();
    this.exact = said.exact !== false;
    this.take(said);
  }

  async more() {
    if (report || this.range) return;
    const said = await get(ofRun(this.run, "metrics"), { series: this.asked, after: this.cursor, points: POINTS });
    if (!said.reset) this.take(said);
    const most = Math.max(0, ...[...this.series.values()].map((one) => one.x.length));
    if (said.reset || most > MOST) await this.all();
  }

  // Takes in a message of the stream; returns whether it will do, or the server has to be asked.
  heard({ name, key, step, t, fields }) {
    if (this.range) return true;
    if (this.task) this.isBehind = true;
    if (!this.cursor || this.isVoid || this.isBehind || Date.now() / 1000 - this.read_t > WHOLE_S) return false;
    const found = Object.entries(fields).map(([field, value]) => [this.series.get(`${name}.${field}${key ? `@${key}` : ""}`), num(value)]);
    const known = found.filter(([one]) => one);
    const at = known.map(([one]) => (one.by === "t" ? t : step));
    if (!known.length || known.some(([one], index) => !(at[index] > one.x[one.x.length - 1]))) return false; // new, or repeated after a restart
    known.forEach(([one, value], index) => {
      one.x.push(at[index]);
      for (const line of [one.y, one.lo, one.hi]) line.push(value);
    });
    return Math.max(...known.map(([one]) => one.x.length)) <= MOST;
  }

  take(said) {
    for (const [name, one] of Object.entries(said.series)) this.join(name, one);
    this.cursor = said.cursor || "";
    this.resumes = said.resumes || this.resumes;
    this.indexed = said.indexed || null;
  }

  join(name, one) {
    const x = one.steps || one.t || [];
    const to = this.series.get(name) || { by: one.steps ? "step" : "t", x: [], y: [], lo: [], hi: [] };
    const last = to.x.length ? to.x[to.x.length - 1] : -Infinity;
    x.forEach((at, index) => {
      if (at <= last) return;
      to.x.push(at);
      to.y.push(num((one.mean || one.last)[index]));
      to.lo.push(num((one.min || one.mean)[index]));
      to.hi.push(num((one.max || one.mean)[index]));
    });
    this.series.set(name, to);
  }

  // Lines for a chart: those named, or all of NAME@0, NAME@1, ... with a label of their own.
  lines(name, label) {
    const found = [...this.series].filter(([key]) => key === name || key.startsWith(`${name}@`));
    return found.map(([key, one]) => ({ ...one, key, label: key === name ? label : key.slice(name.length + 1) }));
  }

  last(name) {
    const one = this.series.get(name);
    return one && one.y.length ? one.y[one.y.length - 1] : null;
  }
}
