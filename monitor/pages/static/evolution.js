// The page of answers: a step that a person moves, two answers side by side, and how many are right.
import { Answers, FILTERS, kinds } from "./answers.js";
import { get, headers, ofRun, report, url } from "./api.js";
import { Card, NAMES } from "./example.js";
import { el, empty, find, replace, setHidden, setText } from "./dom.js";
import { figure, num, percent, seconds, whole } from "./format.js";
import { runOfPage, showViews } from "./frame.js";
import { calmly, live } from "./live.js";
import { Trends } from "./trends.js";

const PLAY_MS = 900;
const PAGE = 25;
const FIRST = "first";
const BEFORE = "before";
const EXPECTED = "expected";

class Page {
  constructor(root) {
    this.root = root;
    this.at = 0; // the place of the step that is shown
    this.followed = Infinity; // that step; without end: the last one, whichever it is
    this.base = FIRST;
    this.filter = "";
    this.search = "";
    this.shown = PAGE;
    this.cards = new Map();
    this.other = null; // the answers of the other run, if that is the base
    this.awaited = null; // those that are asked for now
    this.timer = 0;
    this.turn = 0;
    this.trends = new Trends(this.part("chart-right"), this.part("chart-loss"), (step) => this.go(this.answers.placeOf(step)));
    this.listen();
  }

  part(name) {
    return find(this.root, name);
  }

  async start() {
    const asked = runOfPage();
    let { datasets } = await get("api/evolution/datasets", { run: asked });
    const isLatest = !new URLSearchParams(location.search).get("run");
    if (!datasets.length && isLatest && !report) ({ datasets } = await get("api/evolution/datasets"));
    this.run = datasets.length ? datasets[0].run : asked;
    setText(this.part("run"), this.run);
    if (datasets.length && !report) showViews(this.run, "evolution");
    this.datasets = datasets.filter((one) => one.run === this.run);
    replace(this.part("dataset"), this.datasets.map((one) => el("option", { value: one.name }, one.name)));
    setHidden(this.part("dataset-label"), !this.datasets.length);
    setHidden(this.part("export"), Boolean(report) || !this.datasets.length);
    if (!this.datasets.length) {
      replace(this.part("empty"), empty("No answers yet", "A training with held-out prompts answers them at steps 0, 10, 25, 50, 100 and so on; a script of your own has none.", "./airlock serve --demo"));
      setHidden(this.part("empty"), false);
      setHidden(this.part("body"), true);
      return;
    }
    if (!this.answers) await this.choose(this.datasets[0].name);
  }

  async choose(dataset) {
    const row = this.datasets.find((one) => one.name === dataset);
    this.dataset = dataset;
    this.answers = new Answers(this.run, dataset);
    this.others = [];
    if (!report) {
      const { datasets } = await get("api/evolution/datasets");
      const all = datasets.find((one) => one.name === dataset);
      this.others = ((all || row).runs || []).filter((one) => one !== this.run).slice(0, 100);
    }
    this.base = FIRST;
    this.other = null;
    this.awaited = null;
    this.followed = Infinity;
    await this.answers.refresh();
    this.at = this.answers.placeOf(this.followed);
    setHidden(this.part("empty"), true);
    setHidden(this.part("body"), false);
    this.showFrame();
    await this.show();
  }

  // New snapshots have come, maybe: whoever looked at the last one sees the new last one.
  async refresh() {
    if (!this.answers) return this.start();
    await this.answers.refresh();
    if (this.other) await this.other.refresh();
    this.at = this.answers.placeOf(this.followed);
    this.showFrame();
    return this.show();
  }

  get step() {
    return this.answers.steps[this.at];
  }

  showFrame() {
    const { steps, broken } = this.answers;
    const slider = this.part("slider");
    slider.max = String(steps.length - 1);
    this.showTicks();
    const base = this.part("base");
    const option = (value, name) => el("option", { value, selected: value === this.base }, name);
    replace(base, el("optgroup", { label: "This run" }, option(FIRST, `its first step (${whole(steps[0])})`), option(BEFORE, "the step before"), option(EXPECTED, "the expected answer"), steps.slice(1).map((step) => option(`step:${step}`, `step ${whole(step)}`))),
      this.others.length ? el("optgroup", { label: "The same step of" }, this.others.map((run) => option(`run:${run}`, run))) : null);
    base.value = this.base;
    const missed = this.answers.total > this.answers.rows.size ? `The first ${whole(this.answers.rows.size)} of ${whole(this.answers.total)} prompts have a timeline.` : "";
    replace(this.part("banners"), broken.length ? el("p.banner.warn", {}, `Step ${broken.map((one) => whole(one.step)).join(", ")} cannot be read: ${broken[0].error}`) : null, missed ? el("p.banner.note", {}, missed) : null);
    this.trends.set(this.answers, this.other);
  }

  showTicks() {
    const { steps } = this.answers;
    const every = Math.ceil(steps.length / (innerWidth < 720 ? 7 : 20));
    const last = Math.max(1, steps.length - 1);
    const isShown = (place) => place === steps.length - 1 || (place % every === 0 && place + every * 0.6 < steps.length);
    replace(this.part("ticks"), steps.map((step, place) => (isShown(place) ? el("span", { style: { left: `${(place / last) * 100}%` } }, whole(step)) : null)));
  }

  go(place) {
    if (!this.answers) return;
    const to = Math.min(this.answers.steps.length - 1, Math.max(0, place));
    if (to === this.at) return;
    this.at = to;
    this.followed = to === this.answers.steps.length - 1 ? Infinity : this.step;
    this.show();
  }

  // Shows the step; a slower answer to an earlier question is dropped.
  async show() {
    this.turn += 1;
    const turn = this.turn;
    const { answers, other, base, at } = this;
    this.part("slider").value = String(at);
    setText(this.part("step"), `Step ${whole(this.step)}`);
    this.part("slider").setAttribute("aria-valuetext", `step ${whole(this.step)}`);
    this.trends.mark(this.step);
    this.tell();
    const before = this.baseStep();
    try {
      const [now, was] = await Promise.all([answers.at(this.step), before === null ? null : (other || answers).at(before)]);
      if (turn !== this.turn) return;
      this.rows = this.rowsOf(now, was, base === EXPECTED, before);
      this.list();
    } catch (error) {
      if (turn === this.turn) this.fail(error);
    }
  }

  baseStep() {
    const { answers, other, base, at } = this;
    if (base === EXPECTED) return null;
    if (other) return other.steps[other.placeOf(this.step)];
    if (base === BEFORE) return answers.steps[Math.max(0, at - 1)];
    return base === FIRST ? answers.steps[0] : Number(base.slice(5));
  }

  rowsOf(now, was, isExpected, before) {
    const { answers, other, at } = this;
    const key = other && this.isOtherData() ? (row) => `${row.input}\n${row.expected}` : (row) => row.id;
    const byKey = new Map(was ? [...was.values()].map((row) => [key(row), row]) : []);
    const beforeTitle = isExpected ? "" : other ? `${other.run} · step ${whole(before)}` : `Step ${whole(before)}`;
    const nowTitle = other ? `${this.run} · step ${whole(this.step)}` : `Step ${whole(this.step)}`;
    return [...now.values()].map((row) => {
      const base = isExpected ? { ...row, output: row.expected, isRight: null } : byKey.get(key(row)) || null;
      const right = answers.right(row.id);
      const wasRight = base ? base.isRight : null;
      return { id: row.id, now: row, before: base, right, similarity: answers.similarity(row.id), at, steps: answers.steps, kinds: kinds(right, at, wasRight, row.isRight, Boolean(other)), beforeTitle, nowTitle };
    });
  }

  isOtherData() {
    const hash = (all) => (all.snapshots.length ? all.snapshots[all.snapshots.length - 1].dataset_hash : "");
    return hash(this.answers) !== hash(this.other);
  }

  tell() {
    const { summary, cost, left_out_steps: leftOut } = this.answers.snapshots[this.at];
    const parts = [`${whole(summary.correct)} of ${whole(summary.total_examples)} right (${percent(summary.accuracy, 0)})`];
    if (num(summary.similarity) !== null) parts.push(`similarity ${figure(summary.similarity, 3)}`);
    if (num(summary.avg_loss) !== null) parts.push(`loss ${figure(summary.avg_loss, 3)}`);
    if (cost && num(cost.seconds) !== null) parts.push(`took ${seconds(cost.seconds)}`);
    if (leftOut && leftOut.length) parts.push(`left out for time: ${leftOut.map(whole).join(", ")}`);
    setText(this.part("said"), parts.join(" · "));
  }

  list() {
    const text = this.search.toLocaleLowerCase();
    const has = (row) => [row.now, row.before].some((one) => one && [one.input, one.expected, one.output].some((part) => part.toLocaleLowerCase().includes(text)));
    const found = text ? this.rows.filter(has) : this.rows;
    this.showFilters(found);
    const wanted = this.filter ? found.filter((row) => row.kinds.includes(this.filter)) : found;
    const shown = wanted.slice(0, this.shown);
    const cards = shown.map((row) => {
      if (!this.cards.has(row.id)) this.cards.set(row.id, new Card(row.id, (place) => this.go(place)));
      const card = this.cards.get(row.id);
      card.set(row);
      return card.node;
    });
    const list = this.part("examples");
    const isSame = list.children.length === cards.length && cards.every((node, place) => list.children[place] === node);
    if (!isSame) list.replaceChildren(...cards);
    const left = wanted.length - shown.length;
    setHidden(this.part("more"), left <= 0);
    setText(this.part("more"), `Show ${whole(Math.min(left, PAGE))} more of ${whole(left)}`);
    setHidden(this.part("none"), wanted.length > 0);
    if (!wanted.length) replace(this.part("none"), empty(text ? "No prompt or answer has this text" : "No prompt is like this at this step", "Other steps, or another filter, may have some."));
    setText(this.part("legend"), `Bars: each prompt at ${this.answers.steps.length} steps. Full: right. Hollow: wrong, as high as the answer is similar.`);
  }

  showFilters(rows) {
    const count = (name) => (name ? rows.filter((row) => row.kinds.includes(name)).length : rows.length);
    const bar = this.part("filters");
    if (!bar.children.length) {
      replace(bar, ["", ...FILTERS].map((name) => el("button", { type: "button", data: { filter: name }, onclick: () => this.narrow(name) }, name ? NAMES[name] : "All", " ", el("b", {}, ""))));
    }
    for (const button of bar.children) {
      button.setAttribute("aria-pressed", String(button.dataset.filter === this.filter));
      setText(button.querySelector("b"), whole(count(button.dataset.filter)));
    }
  }

  narrow(name) {
    this.filter = name;
    this.shown = PAGE;
    this.list();
  }

  // A base is shown once its answers have come; of two choices the later one counts.
  async compareWith(value) {
    const other = value.startsWith("run:") ? new Answers(value.slice(4), this.dataset) : null;
    this.awaited = other;
    if (other) await other.refresh();
    if (this.awaited !== other) return;
    this.base = value;
    this.other = other;
    this.showFrame();
    await this.show();
  }

  play(isOn) {
    clearInterval(this.timer);
    this.timer = 0;
    this.part("play").setAttribute("aria-pressed", String(isOn));
    setText(this.part("play-text"), isOn ? "Stop" : "Play");
    if (!isOn) return;
    if (this.at === this.answers.steps.length - 1) this.go(0);
    this.timer = setInterval(() => {
      if (document.hidden || this.at >= this.answers.steps.length - 1) this.play(false);
      else this.go(this.at + 1);
    }, PLAY_MS);
  }

  fail(error) {
    replace(this.part("banners"), el("p.banner.bad", {}, el("b", {}, error.message), error.hint ? ` ${error.hint}` : ""));
  }

  listen() {
    const on = (name, kind, work) => this.part(name).addEventListener(kind, (event) => {
      Promise.resolve(work(event)).catch((error) => this.fail(error));
    });
    on("slider", "input", (event) => this.go(Number(event.target.value)));
    on("back", "click", () => this.go(this.at - 1));
    on("on", "click", () => this.go(this.at + 1));
    on("play", "click", () => this.play(!this.timer));
    on("base", "change", (event) => this.compareWith(event.target.value));
    on("dataset", "change", (event) => this.choose(event.target.value));
    on("more", "click", () => {
      this.shown += PAGE;
      this.list();
    });
    on("search", "input", (event) => {
      this.search = event.target.value;
      this.shown = PAGE;
      this.list();
    });
    for (const button of this.part("export").querySelectorAll("button")) button.addEventListener("click", () => this.save(button).catch((error) => this.fail(error)));
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", calmly(() => this.answers && this.showTicks(), 200));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.answers) return;
    if (event.target.closest("input, select, textarea, button, a, [role=img]")) return;
    const work = { " ": () => this.play(!this.timer), ArrowLeft: () => this.go(this.at - 1), ArrowRight: () => this.go(this.at + 1), "/": () => this.part("search").focus() }[event.key];
    if (!work) return;
    work();
    event.preventDefault();
  }

  // Fetched, not linked to: a link could send no token.
  async save(button) {
    const { format } = button.dataset;
    const answer = await fetch(url(`${this.answers.path}/export`, { run: this.run, format }), { headers: headers(), credentials: "omit" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const link = el("a", { href: URL.createObjectURL(await answer.blob()), download: `${this.run}-${this.dataset}.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

export function start(root) {
  const page = new Page(root);
  const refresh = calmly(() => page.refresh().catch((error) => page.fail(error)), 1000);
  refresh(); // whether there is a stream or not
  const stream = live(ofRun(runOfPage(), "stream"), { answers: refresh, status: (row) => isOver(row.state) && stream.end("Run is over") }, refresh);
}

function isOver(state) {
  return !["running", "paused"].includes(state);
}

const part = document.querySelector("[data-part=evolution]");
if (part && document.body.dataset.page === "evolution") start(part);
