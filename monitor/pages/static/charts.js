// The only module that knows uPlot: a chart with its legend, a band of minimum and maximum, zoom.
import { el, setText } from "./dom.js";
import { figure, NONE, whole } from "./format.js";
import { onTheme } from "./frame.js";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const BINARY = Array.from({ length: 52 }, (_, power) => 2 ** power);
const WHOLE = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);

// The colour and the dash of the line number `index`: twelve colours, then again with dashes.
export function lineStyle(index) {
  return { color: `--c${index % 12}`, dash: DASHES[Math.floor(index / 12) % DASHES.length] };
}

export function css(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim() || "#888";
}

function faded(color) {
  return /^#[0-9a-f]{6}$/i.test(color) ? `${color}33` : color;
}

// spec: title, unit, x ("step" or "t"), format (a value), tick (on the axis), fixed ([from, to]),
// fromZero, binary (bytes), log, height, group (charts whose cursors move together), onZoom(from, to).
// Its lines: [{key, label, color, dash, x, y, lo, hi}]; x rising, lo and hi null where exact.
export class Chart {
  constructor(host, spec) {
    this.spec = spec;
    this.lines = [];
    this.marks = [];
    this.range = null;
    this.plot = null;
    this.items = new Map();
    this.legend = el("ul.legend", { "aria-label": `Latest values of ${spec.title}` });
    this.note = el("p.chart-note", {});
    this.canvas = el("div.canvas", { tabindex: "0", role: "img", "aria-label": spec.title, style: { height: `${spec.height || 180}px` } });
    this.blank = el("p.chart-blank", {}, spec.blank || "No figures yet");
    this.canvas.append(this.blank);
    host.classList.add("chart");
    host.append(el("header", {}, el("h3", {}, spec.title, spec.unit ? el("span.unit", {}, ` ${spec.unit}`) : null), this.legend), this.canvas, this.note);
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.canvas);
    onTheme(() => this.plot && this.plot.redraw(false));
  }

  // Shows `lines`; `range` is [from, to] of x, or null for all; `marks` are [{x, label}].
  set(lines, { range = null, marks = [], note = "" } = {}) {
    const shown = lines.filter((line) => line.x.length);
    const names = (all) => all.map((line) => `${line.key}${line.color}${line.dash}`).join("\n");
    const rebuilds = !this.plot || names(shown) !== names(this.lines);
    this.lines = shown;
    this.range = range;
    this.marks = marks;
    setText(this.note, note);
    this.blank.hidden = shown.length > 0;
    if (!shown.length) {
      this.drop();
      this.relabel();
      return;
    }
    if (rebuilds) this.build();
    else this.fill();
    this.relabel();
    this.describe();
  }

  drop() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.legend.replaceChildren();
    this.items.clear();
  }

  destroy() {
    this.watcher.disconnect();
    this.drop();
  }

  build() {
    this.drop();
    const { spec } = this;
    const series = [{}];
    const bands = [];
    for (const line of this.lines) {
      const stroke = () => css(line.color);
      const edge = { stroke: "transparent", width: 0, points: { show: false } };
      series.push({ stroke, width: 1.75, dash: line.dash, points: { show: line.points ? true : undefined, size: 5, fill: stroke } }, edge, edge);
      bands.push({ series: [series.length - 1, series.length - 2], fill: () => faded(css(line.color)) });
    }
    const font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    const axis = { font, stroke: () => css("--muted"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false } };
    const isTime = spec.x === "t";
    const tick = (value) => (spec.tick || spec.format || ((one) => figure(one, 3)))(value).replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
    const options = {
      width: this.width(), height: this.height(), series, bands,
      padding: [8, () => this.rightRoom(), 0, 0],
      legend: { show: false },
      scales: { x: { time: isTime, range: (plot) => this.xRange(plot.data[0]) }, y: { distr: spec.log ? 3 : 1, range: (_, from, to) => this.yRange(from, to) } },
      axes: [
        { ...axis, size: 32, gap: 8, ...(isTime ? { space: 76, values: (plot, all) => times(plot, all) } : { incrs: WHOLE, values: (_, all) => all.map(whole) }) },
        { ...axis, size: 64, gap: 6, ...(spec.binary ? { incrs: BINARY } : {}), values: (_, all) => all.map((value) => (value === null ? "" : tick(value))) },
      ],
      cursor: { y: false, drag: { x: true, y: false, setScale: false }, ...(spec.group ? { sync: { key: spec.group, setSeries: false } } : {}), points: { size: 7 } },
      hooks: { draw: [(plot) => this.drawMarks(plot)], setCursor: [() => this.relabel()], setSelect: [(plot) => this.zoomed(plot)] },
    };
    this.plot = new window.uPlot(options, this.table(), this.canvas);
    this.plot.over.addEventListener("dblclick", () => spec.onZoom && spec.onZoom(null, null));
    for (const line of this.lines) {
      const value = el("span.value", {}, NONE);
      const sign = el("i", { "aria-hidden": "true", style: { "border-top-color": `var(${line.color})`, "border-top-style": line.dash && line.dash.length ? "dashed" : "solid" } });
      this.items.set(line.key, value);
      this.legend.append(el("li", {}, sign, el("span", {}, line.label), value));
    }
  }

  fill() {
    this.plot.setData(this.table());
  }

  // One table of all lines: x, then mean, minimum and maximum of each; gaps are null. All of it is
  // copied: the lines grow while the chart still shows what it was given.
  table() {
    const known = (all) => all.map((value) => (value === null || !Number.isFinite(value) ? null : value));
    const tables = this.lines.map((line) => {
      const y = known(line.y);
      return [[...line.x], y, line.lo ? known(line.lo) : y, line.hi ? known(line.hi) : y];
    });
    return tables.length === 1 ? tables[0] : window.uPlot.join(tables);
  }

  xRange(xs) {
    if (this.range) return this.range;
    if (!xs || !xs.length) return [0, 1];
    const [from, to] = [xs[0], xs[xs.length - 1]];
    if (from === to) return this.spec.x === "t" ? [from - 30, to + 30] : [Math.max(0, from - 1), to + 1];
    return [from, to];
  }

  // Half of the last label stands to the right of the axis.
  rightRoom() {
    const last = this.range ? this.range[1] : Math.max(0, ...this.lines.map((line) => line.x[line.x.length - 1]));
    const longest = this.spec.x === "t" ? "00:00:00".length : whole(last).length;
    return Math.max(12, Math.ceil(3.7 * longest) + 4);
  }

  yRange(from, to) {
    const { fixed, fromZero, log } = this.spec;
    if (fixed) return fixed;
    if (from === null || from === undefined) return log ? [0.1, 1] : [0, 1];
    if (log) return window.uPlot.rangeLog(Math.max(from, 1e-12), Math.max(to, from * 1.01, 1e-11), 10, false);
    const room = (to - from || Math.abs(to) || 1) * 0.08;
    const low = fromZero || (from >= 0 && from - room < 0) ? Math.min(0, from) : from - room;
    return [low, to + room];
  }

  zoomed(plot) {
    if (plot.select.width < 6) return;
    const from = plot.posToVal(plot.select.left, "x");
    const to = plot.posToVal(plot.select.left + plot.select.width, "x");
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (this.spec.onZoom) this.spec.onZoom(from, to);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio || 1;
    ctx.save();
    ctx.fillStyle = css("--muted");
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    for (const mark of this.marks) {
      const at = Math.round(plot.valToPos(mark.x, "x", true)) + 0.5;
      if (!(at >= bbox.left && at <= bbox.left + bbox.width + 1)) continue;
      ctx.strokeStyle = css("--line-strong");
      ctx.lineWidth = scale;
      ctx.setLineDash([3 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      const right = at + 80 * scale > bbox.left + bbox.width;
      ctx.textAlign = right ? "right" : "left";
      // A rim of the panel's colour keeps the words legible where they cross a line.
      const place = [mark.label, at + (right ? -4 : 4) * scale, bbox.top + 11 * scale];
      ctx.strokeStyle = css("--panel");
      ctx.lineWidth = 4 * scale;
      ctx.setLineDash([]);
      ctx.strokeText(...place);
      ctx.fillText(...place);
    }
    ctx.restore();
  }

  // The legend: values under the cursor, else the latest.
  relabel() {
    const format = this.spec.format || figure;
    const at = this.plot && this.plot.cursor.idx;
    const isOver = this.plot && at !== null && at !== undefined && this.plot.cursor.left >= 0;
    this.lines.forEach((line, index) => {
      const value = isOver ? near(this.plot.data[1 + 3 * index], at) : line.y[line.y.length - 1];
      setText(this.items.get(line.key), value === null || value === undefined ? NONE : format(value));
    });
    this.legend.classList.toggle("over", Boolean(isOver));
    if (isOver && this.spec.onCursor) this.spec.onCursor(this.plot.data[0][at]);
  }

  describe() {
    const format = this.spec.format || figure;
    const said = this.lines.slice(0, 8).map((line) => `${line.label} ${format(line.y[line.y.length - 1])}`);
    this.canvas.setAttribute("aria-label", `${this.spec.title}. Latest: ${said.join(", ")}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.`);
  }

  key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const xs = this.plot.data[0];
    const { min, max } = this.plot.scales.x;
    const at = this.plot.cursor.left >= 0 ? this.plot.cursor.idx : xs.length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -xs.length, End: xs.length };
    if (event.key in steps) {
      const to = Math.min(xs.length - 1, Math.max(0, at + steps[event.key]));
      this.plot.setCursor({ left: this.plot.valToPos(xs[to], "x"), top: 10 });
    } else if (event.key === "Escape") this.plot.setCursor({ left: -10, top: -10 });
    else if (this.spec.onZoom && ["+", "=", "-", "0"].includes(event.key)) {
      const middle = this.plot.cursor.left >= 0 ? xs[at] : (min + max) / 2;
      const half = ((max - min) / 2) * (event.key === "-" ? 2 : 0.5);
      if (event.key === "0") this.spec.onZoom(null, null);
      else this.spec.onZoom(middle - half, middle + half);
    } else return;
    event.preventDefault();
  }

  width() {
    return Math.max(120, this.canvas.clientWidth);
  }

  height() {
    return Math.max(60, this.canvas.clientHeight);
  }

  resize() {
    if (this.plot && (this.plot.width !== this.width() || this.plot.height !== this.height())) this.plot.setSize({ width: this.width(), height: this.height() });
  }
}

// Times of one day need no date.
function times(plot, all) {
  const { min, max } = plot.scales.x;
  const at = (value) => new Date(value * 1000);
  if (max - min > 36 * 3600) return all.map((value) => at(value).toLocaleDateString("sv-SE").slice(5));
  return all.map((value) => at(value).toLocaleTimeString("sv-SE").slice(0, max - min > 1200 ? 5 : 8));
}

// The value at an index, or the nearest before it: lines of other steps lie between.
function near(values, index) {
  for (let at = index; at >= 0 && at > index - 2000; at -= 1) {
    if (values[at] !== null && values[at] !== undefined) return values[at];
  }
  return null;
}
