// The charts of a run: which there are, and which series each shows.
import { Chart, lineStyle } from "./charts.js";
import { el } from "./dom.js";
import { bytes, figure, percent, power, rate, seconds, short } from "./format.js";

const GPU_GIVEN = "No GPU in this run";
const many = (name, of) => ({ name, of });
const line = (name, label, style, more) => ({ name, label, style, ...more });
const asPercent = (value) => percent(value, 0);

// x "step": of training; "t": of the machine.
const TRAINING = [
  { title: "Loss", unit: "per answer token", wide: true, height: 236, log: true, series: [line("train.loss", "training", 0), line("eval.loss", "held out", 1, { points: true }), many("eval.set.loss", "set")] },
  { title: "Learning rate", height: 236, series: [line("train.lr", "rate", 0)], format: power, tick: (value) => power(value, 2), fromZero: true },
  { title: "Gradient norm", unit: "before clipping", series: [line("train.grad_norm", "norm", 0)], fromZero: true },
  { title: "Throughput", unit: "tok/s, all ranks", series: [line("train.tokens_per_s", "tokens", 0)], format: rate, tick: short, fromZero: true },
  { title: "MFU", unit: "of what all GPUs could compute", series: [line("train.mfu", "MFU", 0)], format: (value) => percent(value), tick: asPercent, fromZero: true, blank: "not known on this device" },
  { title: "Step parts", unit: "mean a step", series: [line("train.time_data_s", "data", 0), line("train.time_forward_s", "forward", 1), line("train.time_backward_s", "backward", 2), line("train.time_comm_s", "exchange", 3), line("train.time_optimizer_s", "optimizer", 5)], format: seconds, fromZero: true },
  { title: "Waiting for other ranks", unit: "mean a step, by rank", series: [many("train.rank.time_wait_s", "rank")], format: seconds, fromZero: true, blank: "one rank waits for nobody" },
  { title: "Answers", unit: "held out", series: [line("eval.exact_match", "exact", 0, { points: true }), line("evolution.accuracy", "prompts exact", 2, { points: true }), line("evolution.similarity", "similarity", 3, { points: true })], format: (value) => percent(value, 0), fixed: [0, 1.04], blank: "none generated yet" },
];
const MACHINE = [
  { title: "Preparation of the data", unit: "memory", series: [line("prepare.progress.pss_bytes", "memory", 4)], format: bytes, binary: true, fromZero: true, least: 10 },
  { title: "Host memory", unit: "of the run", series: [line("host.pss_bytes", "all", 0), line("host.pss_anon_bytes", "anonymous", 1)], format: bytes, binary: true, fromZero: true },
  { title: "Host memory left", unit: "MemAvailable", series: [line("host.available_bytes", "available", 2)], format: bytes, binary: true, fromZero: true },
  { title: "GPU memory", series: [many("gpu.used_bytes", "GPU")], format: bytes, binary: true, fromZero: true, gpu: true },
  { title: "GPU utilisation", series: [many("gpu.utilization_percent", "GPU")], format: (value) => `${figure(value, 3)} %`, fixed: [0, 104], gpu: true },
  { title: "GPU temperature", series: [many("gpu.temperature_c", "GPU")], format: (value) => `${figure(value, 3)} °C`, gpu: true },
  { title: "GPU power", series: [many("gpu.power_w", "GPU")], format: (value) => `${figure(value, 3)} W`, fromZero: true, gpu: true },
];

// How far the preparation is, told in words: not drawn.
const PREPARED = [line("prepare.progress.num_rows"), line("prepare.progress.done_bytes"), line("prepare.progress.total_bytes")];

export const NAMES = [...new Set([...TRAINING, ...MACHINE, { series: PREPARED }].flatMap((chart) => chart.series.map((one) => one.name)))];

export class Charts {
  constructor(training, machine, onZoom) {
    this.onZoom = onZoom;
    this.isLog = false;
    this.all = [...TRAINING.map((spec) => this.make(training, spec, "step")), ...MACHINE.map((spec) => this.make(machine, spec, "t"))];
  }

  make(host, spec, x) {
    const node = el(spec.wide ? "section.wide" : "section", { "aria-label": spec.title });
    host.append(node);
    const chart = new Chart(node, { ...spec, log: false, blank: spec.blank || (spec.gpu ? GPU_GIVEN : "No figures yet"), x, group: x === "step" ? "steps" : "times", onZoom: x === "step" ? this.onZoom : null });
    return { spec, chart, node, x };
  }

  logarithmic(isLog) {
    for (const one of this.all.filter((each) => each.spec.log)) {
      one.chart.spec.log = isLog;
      one.chart.drop();
      one.chart.lines = [];
    }
  }

  set(metrics) {
    const marks = metrics.resumes.map((resume) => ({ x: resume.step, label: resume.attempt ? `restart ${resume.attempt}` : "resumed" }));
    for (const { spec, chart, node, x } of this.all) {
      const lines = spec.series.flatMap((one) => linesOf(metrics, one));
      node.hidden = !lines.some((one) => one.x.length >= (spec.least || 1));
      chart.set(lines, { range: x === "step" ? metrics.range : null, marks: x === "step" ? marks : [], note: note(metrics, lines, x) });
    }
  }

  get hasGpu() {
    return this.all.some((one) => one.spec.gpu && !one.node.hidden);
  }

  get hasSteps() {
    return this.all.some((one) => one.x === "step" && !one.node.hidden);
  }

  // What is not there, and why, in words; empty while nothing is there at all.
  get missing() {
    const told = this.all.filter((one) => one.x === "step" && one.node.hidden && one.spec.blank);
    return this.hasSteps && told.length ? `Not shown: ${told.map((one) => `${one.spec.title} (${one.spec.blank.toLowerCase()})`).join(", ")}.` : "";
  }
}

function linesOf(metrics, one) {
  const found = metrics.lines(one.name, one.label).filter((line) => line.y.some((value) => value !== null));
  return found.map((each, index) => {
    if (!one.of) return { ...each, ...lineStyle(one.style), points: one.points };
    const number = Number(each.label);
    const style = lineStyle(one.of === "set" ? 2 + index : Number.isInteger(number) ? number : index);
    return { ...each, ...style, label: `${one.of} ${each.label}`, points: one.of === "set" };
  });
}

function note(metrics, lines, x) {
  if (metrics.exact || !lines.some((line) => line.y.length > 200)) return "";
  return `Mean, with the band from minimum to maximum of what each point stands for.${x === "step" ? " Drag to see every step." : ""}`;
}
