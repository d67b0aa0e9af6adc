// Runs beside each other: any metric in one chart, and what differs in their configurations.
import { get, ofRun } from "./api.js";
import { Chart } from "./charts.js";
import { shown } from "./config.js";
import { el, empty, find, replace, setHidden, setText } from "./dom.js";
import { bytes, figure, percent, power, rate, seconds } from "./format.js";
import { showLive } from "./frame.js";
import { Metrics } from "./metrics.js";

const METRICS = [["train.loss", "Training loss"], ["eval.loss", "Held-out loss"], ["eval.exact_match", "Exact answers"], ["evolution.accuracy", "Exact answers to the prompts"], ["evolution.similarity", "Similarity of answers"], ["train.lr", "Learning rate"], ["train.grad_norm", "Gradient norm"], ["train.tokens_per_s", "Throughput"], ["train.mfu", "MFU"], ["train.time_data_s", "Step: data"], ["train.time_forward_s", "Step: forward"], ["train.time_backward_s", "Step: backward"], ["train.time_comm_s", "Step: exchange"], ["train.time_optimizer_s", "Step: optimizer"], ["host.pss_anon_bytes", "Host memory"], ["gpu.used_bytes", "GPU memory"]];
const EVERY_S = 5;
const ALIKE = [0, 1, 2, 3, 0, 1, 0, 1, 1, 2, 10, 3]; // of the twelve colours: blues, browns, greens, pinks, grey
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4]];

export function start(root) {
  const ids = (new URLSearchParams(location.search).get("runs") || "").split(",").filter(Boolean).slice(0, 12);
  new Comparison(root, ids).start();
}

class Comparison {
  constructor(root, ids) {
    Object.assign(this, { root, ids });
    this.runs = [];
    this.metric = METRICS[0][0];
    this.range = null;
  }

  async start() {
    const { root } = this;
    for (const name of ["chart", "differences", "metric"]) setHidden(name === "metric" ? find(root, name).closest("label") : find(root, name), !this.ids.length);
    if (!this.ids.length) {
      replace(find(root, "nothing"), el("section.panel", {}, empty("No runs are chosen", "Tick two or more in the list of runs, then press Compare."), el("p.centre", {}, el("a", { href: "./" }, "To the runs"))));
      return;
    }
    const found = await Promise.allSettled(this.ids.map((id) => this.read(id)));
    this.runs = found.filter((one) => one.status === "fulfilled").map((one) => one.value);
    const lost = found.map((one, at) => (one.status === "rejected" ? `${this.ids[at]}: ${one.reason.message}` : null)).filter(Boolean);
    if (lost.length) replace(find(root, "nothing"), el("div.banner.warn", {}, lost.join("; ")));
    if (!this.runs.length) return;
    replace(find(root, "chosen"), this.runs.map(({ row }) => el("li", {}, el(`span.swatch.c${row.color % 12}`, { "aria-hidden": "true" }), el("a", { href: `run?run=${encodeURIComponent(row.id)}` }, row.id), el("span.state", { data: { state: row.state } }, row.state), el("span.muted", {}, `loss ${figure(row.loss)}`))));
    this.differences();
    replace(find(root, "metric"), METRICS.map(([key, name]) => el("option", { value: key }, name)));
    find(root, "metric").addEventListener("change", (event) => this.show(event.target.value));
    find(root, "zoom-out").addEventListener("click", () => this.zoom(null, null));
    await this.show(this.metric);
    showLive("live", "Live");
    setInterval(() => !document.hidden && this.refresh(), EVERY_S * 1000);
  }

  async read(id) {
    const [row, config] = await Promise.all([get(ofRun(id, "status")), get(ofRun(id, "config"))]);
    return { row, values: config.values || {} };
  }

  async show(metric) {
    this.metric = metric;
    this.range = null;
    const host = find(this.root, "chart");
    if (this.chart) this.chart.destroy();
    host.replaceChildren();
    const format = metric.endsWith("_bytes") ? bytes : metric.endsWith("_s") && !metric.endsWith("per_s") ? seconds : metric.endsWith("tokens_per_s") ? rate : /mfu|accuracy|exact|similarity/.test(metric) ? percent : metric === "train.lr" ? power : figure;
    const isTime = /^(host|gpu)\./.test(metric);
    this.chart = new Chart(host, { title: METRICS.find(([key]) => key === metric)[1], format, binary: metric.endsWith("_bytes"), fromZero: metric !== "train.loss", x: isTime ? "t" : "step", height: 340, onZoom: isTime ? null : (from, to) => this.zoom(from, to), blank: "None of these runs has this metric" });
    this.metrics = this.runs.map(({ row }) => new Metrics(row.id, [metric]));
    await this.refresh();
  }

  async refresh() {
    const asked = this.metrics;
    const before = asked.map((one) => one.cursor);
    await Promise.allSettled(asked.map((one) => one.update()));
    if (asked !== this.metrics) return;
    if (before.every((cursor, at) => cursor && cursor === asked[at].cursor)) return;
    this.draw();
  }

  async zoom(from, to) {
    await Promise.allSettled(this.metrics.map((one) => one.zoom(from, to)));
    this.range = this.metrics[0].range;
    setHidden(find(this.root, "zoom-out"), !this.range);
    this.draw();
  }

  draw() {
    const labels = distinct(this.runs.map(({ row }) => row));
    const dashes = dashesOf(this.runs.map(({ row }) => row.color % 12));
    const lines = this.metrics.flatMap((metrics, at) => metrics.lines(this.metric, "").map((line) => {
      const { row } = this.runs[at];
      return { ...line, key: `${row.id} ${line.key}`, label: `${labels[at]}${line.label ? ` ${line.label}` : ""}`, color: `--c${row.color % 12}`, dash: dashes[at] };
    }));
    const isSampled = this.metrics.some((one) => !one.exact);
    this.chart.set(lines, { range: this.range, note: isSampled ? "Down-sampled: mean, and a band from minimum to maximum. Drag to see every step." : "" });
  }

  differences() {
    const names = [...new Set(this.runs.flatMap(({ values }) => Object.keys(values)))].sort();
    const rows = names.map((name) => [name, this.runs.map(({ values }) => shown(values[name]))]).filter(([, all]) => new Set(all).size > 1);
    const labels = distinct(this.runs.map(({ row }) => row));
    setText(find(this.root, "differences-said"), `${rows.length} of ${names.length} settings; those that are the same are left out.`);
    replace(find(this.root, "heads"), el("tr", {}, el("th", { scope: "col" }, "Setting"), this.runs.map(({ row }, at) => el("th", { scope: "col" }, el(`span.swatch.c${row.color % 12}`, { "aria-hidden": "true" }), ` ${labels[at]}`))));
    const body = rows.map(([name, all]) => el("tr", {}, el("th.mono", { scope: "row" }, name), all.map((value) => el("td.mono", {}, value || el("span.muted", {}, "not there")))));
    replace(find(this.root, "rows"), body.length ? body : el("tr", {}, el("td", { colspan: this.runs.length + 1 }, empty(this.runs.length > 1 ? "Nothing differs: these runs have the same settings." : "One run alone differs from nothing."))));
  }
}

// A run keeps its colour everywhere; runs whose colours look alike are told apart by dashes.
function dashesOf(colors) {
  const likes = colors.map((color) => ALIKE[color]);
  return likes.map((like, at) => DASHES[likes.slice(0, at).filter((one) => one === like).length % DASHES.length]);
}

// Legends show what differs of names: the name, and the end of the id where two have the same.
export function distinct(rows) {
  return rows.map((row) => (rows.filter((other) => other.name === row.name).length > 1 ? `${row.name} ${row.id.split("-").pop()}` : row.name));
}

const part = document.querySelector("[data-part=compare]");
if (part) start(part);
