// The page of one run.
import { ApiError, get, ofRun, report, serverNow } from "./api.js";
import { Alarms } from "./alarms.js";
import { commandLine, el, empty, find, replace, setHidden, setText } from "./dom.js";
import { Events } from "./events.js";
import { bytes, percent, whole } from "./format.js";
import { runOfPage } from "./frame.js";
import { calmly, live } from "./live.js";
import { Log } from "./logs.js";
import { Metrics } from "./metrics.js";
import { Charts, NAMES } from "./run_charts.js";
import { Head, notices } from "./run_head.js";
import { startup } from "./startup.js";
import { Timeline } from "./timeline.js";
import { Verdicts } from "./verdicts.js";

const SOON_MS = 700; // between two questions of one kind: with the stream's 250 ms, news is seen within a second
const WHOLE_S = 10; // between two looks at all that the server knows of a run which trains
const OVER = ["done", "stopped", "preempted", "failed", "crashed"];

export function start(root) {
  new RunPage(root, runOfPage()).start();
}

class RunPage {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.status = null;
    this.disk_bytes = null;
    this.head = new Head(root, run);
    this.timeline = new Timeline(find(root, "timeline"));
    this.metrics = new Metrics(run, NAMES);
    this.charts = new Charts(find(root, "training"), find(root, "machine"), (from, to) => this.zoom(from, to));
    this.log = new Log(root, run);
    this.events = new Events(find(root, "events"), run);
    this.verdicts = new Verdicts(find(root, "verdicts"), run);
    this.alarms = new Alarms(find(root, "alarms"), () => this.banners());
    find(root, "zoom-out").addEventListener("click", () => this.zoom(null, null));
    find(root, "log-scale").addEventListener("click", (event) => this.scale(event.currentTarget));
  }

  start() {
    const soon = {
      status: calmly(() => this.readStatus(), SOON_MS),
      metrics: calmly(() => this.readMetrics(), SOON_MS),
      charts: calmly(() => this.drawCharts(), SOON_MS),
      log: calmly(() => this.log.update(), SOON_MS),
      events: calmly(() => this.readEvents(), SOON_MS),
      all: calmly(() => this.refresh(), SOON_MS),
    };
    this.stream = live(ofRun(this.run, "stream"), {
      status: (row) => this.takeRow(row) || soon.status(),
      metric: (told) => (this.metrics.heard(told) ? soon.charts() : soon.metrics()),
      log: (line) => this.log.heard(line) || soon.log(),
      event: () => {
        soon.events();
        soon.status();
      },
      answers: soon.metrics,
      reset: () => {
        this.metrics.isVoid = true; // what comes now would stand behind a hole
        soon.all();
      },
      gone: () => this.readStatus(),
    }, () => this.refresh());
    if (!report) this.refresh(); // at once: what comes before the stream is there is told again then
    // What the stream does not tell: the clock, and that the index has come further.
    this.timer = setInterval(() => this.tick(), 1000);
  }

  async refresh() {
    const metrics = this.readMetrics(); // takes longest
    if (!(await this.readStatus())) return;
    await Promise.all([metrics, this.log.update(), this.readEvents(), this.verdicts.update(), this.readDisk()]);
  }

  async readStatus() {
    try {
      this.status = await get(ofRun(this.run, "status"));
    } catch (error) {
      this.failed(error);
      return false;
    }
    this.statusRead_t = serverNow();
    this.head.set(this.status, serverNow());
    this.drawStartup();
    this.banners();
    if (OVER.includes(this.status.state) && !this.isOver) {
      this.isOver = true;
      setTimeout(() => this.last(), 1500);
    }
    return true;
  }

  // While a run trains, the stream tells all that changes but the ranks' memory: returns whether it will do.
  takeRow(row) {
    const told = this.status;
    const isSame = told && ["state", "phase", "attempt"].every((name) => told[name] === row[name]);
    if (!isSame || row.phase !== "training" || serverNow() - this.statusRead_t > WHOLE_S) return false;
    this.status = { ...told, ...row };
    this.head.set(this.status, serverNow());
    this.banners();
    return true;
  }

  // The run is over: all is fetched once more, and the stream ends.
  async last() {
    this.metrics.isVoid = true;
    await Promise.all([this.readMetrics(), this.log.update(), this.readEvents(), this.verdicts.update()]);
    if (!report) this.stream.end("Run is over");
  }

  async readEvents() {
    const { status } = this;
    await this.events.update(Boolean(status) && !OVER.includes(status.state) && ["preparing", "starting"].includes(status.phase));
    if (status) this.drawStartup();
  }

  async readMetrics() {
    try {
      await this.metrics.update();
    } catch (error) {
      if (!this.isMissing) setText(find(this.root, "charts-said"), error.message);
      return;
    }
    if (!this.isMissing) this.drawCharts();
  }

  async readDisk() {
    try {
      const said = await get("api/memory_stats", { run: this.run });
      this.disk_bytes = said.disk ? said.disk.free_bytes : null;
    } catch {
      this.disk_bytes = null;
    }
  }

  drawCharts() {
    const { indexed, exact, range } = this.metrics;
    this.charts.set(this.metrics);
    const said = [];
    if (indexed && !indexed.done && indexed.of_bytes) said.push(`Reading the run's figures: ${percent(indexed.bytes / indexed.of_bytes, 0)} of ${bytes(indexed.of_bytes)}`);
    if (range) said.push(`Steps ${whole(range[0])} to ${whole(range[1])}${exact ? ", every one" : ""}`);
    else if (!exact) said.push("Down-sampled: mean, and a band from minimum to maximum. Drag over a chart to see every step.");
    if (this.metrics.resumes.length) said.push("Dashed lines: the run was resumed there; repeated steps are overwritten.");
    if (this.charts.missing && !range) said.push(this.charts.missing);
    setText(find(this.root, "charts-said"), said.join(" "));
    const goes = this.status && !OVER.includes(this.status.state);
    setHidden(find(this.root, "no-steps"), this.charts.hasSteps);
    setText(find(this.root, "no-steps-title"), goes ? "No step has been reported yet" : "This run has reported no step");
    setHidden(find(this.root, "log-scale"), !this.charts.hasSteps);
    setHidden(find(this.root, "zoom-out"), !range);
    setText(find(this.root, "machine-said"), this.charts.hasGpu ? "" : "No GPU in this run: host memory only.");
    this.banners();
  }

  async zoom(from, to) {
    await this.metrics.zoom(from, to).catch((error) => setText(find(this.root, "charts-said"), error.message));
    this.drawCharts();
  }

  scale(button) {
    const isLog = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isLog));
    this.charts.logarithmic(isLog);
    this.drawCharts();
  }

  drawStartup() {
    const prepared = Object.fromEntries(["num_rows", "done_bytes", "total_bytes", "pss_bytes"].map((name) => [name, this.metrics.last(`prepare.progress.${name}`)]));
    const told = startup(this.status, this.events.startup, prepared, serverNow());
    this.timeline.set(told.rows, told);
    setText(find(this.root, "startup-said"), told.said);
  }

  banners() {
    const { status } = this;
    if (!status) return;
    const told = notices(status, serverNow());
    if (!report) told.push(...this.alarms.watch({ status, metrics: this.metrics, now: serverNow(), disk_bytes: this.disk_bytes }));
    const key = JSON.stringify(told);
    if (key === this.bannersTold) return;
    this.bannersTold = key;
    replace(find(this.root, "banners"), told.map((one) => el(`div.banner.${one.level}`, {}, el("b", {}, one.title), el("span", {}, one.text), one.command ? commandLine(one.command) : null)));
  }

  tick() {
    if (!this.status || document.hidden) return;
    this.head.tick(serverNow());
    this.banners();
    const goes = this.status.state === "running";
    if (goes && ["preparing", "starting"].includes(this.status.phase)) this.drawStartup();
    const { indexed } = this.metrics;
    if (indexed && !indexed.done) {
      this.metrics.cursor = "";
      this.readMetrics();
    }
    if (goes && Math.round(serverNow()) % 60 === 0) this.readDisk();
  }

  failed(error) {
    const missing = error instanceof ApiError && error.status === 404;
    if (missing) this.end(this.status ? "Run is gone" : "No run");
    if (this.status) return; // what is shown stays
    this.isMissing = true;
    const [title, hint] = missing ? [error.message, "Runs are made by:"] : [error.message, error.hint || "Is airlock serve still running?"];
    replace(this.root, el("section.panel", {}, el("h1.hide", {}, "Run"), empty(title, hint, missing ? "./start.sh tiny" : "")));
    clearInterval(this.timer);
  }

  end(text) {
    clearInterval(this.timer);
    this.stream.end(text);
  }
}

const part = document.querySelector("[data-part=run]");
if (part && document.body.dataset.page === "run") start(part);
