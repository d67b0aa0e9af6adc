// The page of all runs.
import { get, serverNow } from "./api.js";
import { el, empty, find, replace, setHidden, setText } from "./dom.js";
import { ago, clock, figure, NONE, num, percent, rate, seconds, whole } from "./format.js";
import { calmly, live } from "./live.js";

const PAGE = 50;
const MOST_COMPARED = 12;

export function start(root) {
  new RunsPage(root).start();
}

class RunsPage {
  constructor(root) {
    this.root = root;
    this.offset = 0;
    this.asked = this.shown = 0; // numbers of the last request, and of that whose answer is shown
    this.rows = new Map();
    this.chosen = new Set();
    let timer = 0;
    const again = () => {
      this.offset = 0;
      this.read();
    };
    find(root, "search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(again, 200);
    });
    find(root, "states").addEventListener("change", again);
    find(root, "newer").addEventListener("click", () => this.turn(-PAGE));
    find(root, "older").addEventListener("click", () => this.turn(PAGE));
    find(root, "compare").addEventListener("click", () => {
      location.href = `compare?runs=${[...this.chosen].map(encodeURIComponent).join(",")}`;
    });
  }

  start() {
    live("api/stream", { runs: calmly(() => this.read(), 700) }, () => this.read());
    setInterval(() => !document.hidden && this.rows.forEach((row) => row.tick()), 1000);
  }

  turn(by) {
    this.offset = Math.max(0, this.offset + by);
    this.read();
    scrollTo({ top: 0 });
  }

  async read() {
    this.asked += 1;
    const number = this.asked;
    const { offset } = this;
    const search = find(this.root, "search").value;
    const state = find(this.root, "states").value;
    let said = null;
    try {
      said = await get("api/runs", { limit: PAGE, offset: offset || "", search, state });
    } catch (error) {
      if (number > this.shown) this.blank(empty(error.message, error.hint));
      return;
    }
    if (number < this.shown) return; // a later question was answered first
    this.shown = number;
    this.show(said.runs);
    setText(find(this.root, "count"), said.total ? `${whole(said.total)}${search || state ? " found" : ""}` : "");
    const from = offset + 1;
    setHidden(find(this.root, "pages"), said.total <= PAGE);
    setText(find(this.root, "where"), `${whole(from)} to ${whole(offset + said.runs.length)} of ${whole(said.total)}`);
    find(this.root, "newer").disabled = offset === 0;
    find(this.root, "older").disabled = offset + PAGE >= said.total;
    if (said.runs.length) this.blank();
    else if (search || state) this.blank(empty("No run is like that.", "Try fewer letters, or all states."));
    else this.blank(empty("No runs yet", "The smallest one needs no GPU and takes about two minutes:", "./start.sh tiny"));
  }

  blank(node) {
    replace(find(this.root, "empty"), node);
    setHidden(this.root.querySelector("thead"), Boolean(node));
    if (node) {
      this.rows.clear();
      find(this.root, "rows").replaceChildren();
    }
  }

  // Rows are kept and changed in place: a focus, a selection and the scroll position stay.
  show(runs) {
    const body = find(this.root, "rows");
    const wanted = runs.map((run) => {
      if (!this.rows.has(run.id)) this.rows.set(run.id, new RunRow(run, this.chosen, () => this.chose()));
      const row = this.rows.get(run.id);
      row.set(run);
      return row.node;
    });
    const ids = new Set(runs.map((run) => run.id));
    for (const [id, row] of this.rows) {
      if (!ids.has(id)) {
        row.node.remove();
        this.rows.delete(id);
      }
    }
    wanted.forEach((node, at) => {
      if (body.children[at] !== node) body.insertBefore(node, body.children[at] || null);
    });
  }

  chose() {
    const button = find(this.root, "compare");
    button.disabled = this.chosen.size < 2 || this.chosen.size > MOST_COMPARED;
    setText(button, this.chosen.size < 2 ? "Compare" : this.chosen.size > MOST_COMPARED ? `At most ${MOST_COMPARED}` : `Compare ${this.chosen.size}`);
    button.classList.toggle("main", !button.disabled);
  }
}

class RunRow {
  constructor(run, chosen, changed) {
    const check = el("input", { type: "checkbox", "aria-label": `Compare ${run.id}` });
    check.checked = chosen.has(run.id);
    check.addEventListener("change", () => {
      if (check.checked) chosen.add(run.id);
      else chosen.delete(run.id);
      changed();
    });
    this.state = el("span.state", {});
    this.progress = el("progress", { max: "1", value: "0", "aria-label": `Progress of ${run.id}` });
    this.steps = el("span.small", {});
    this.why = el("span.small.muted.why", {});
    this.cells = Object.fromEntries(["loss", "speed", "left", "took", "started"].map((key) => [key, el("td.n", { data: { cell: key } })]));
    const link = el("a", { href: `run?run=${encodeURIComponent(run.id)}` }, run.name);
    this.node = el("tr", { data: { run: run.id } },
      el("td", {}, check),
      el("th", { scope: "row" }, el("span.run-name", {}, el(`span.swatch.c${run.color % 12}`, { "aria-hidden": "true" }), link), el("span.small.muted.id", {}, run.id), this.why),
      el("td", {}, this.state),
      el("td.progress", {}, this.progress, this.steps),
      ...Object.values(this.cells));
  }

  set(run) {
    this.run = run;
    this.state.dataset.state = run.state;
    setText(this.state, run.state);
    this.progress.value = run.total_steps ? Math.min(1, run.step / run.total_steps) : 0;
    const phase = run.state === "running" && run.phase !== "training" ? run.phase : "";
    setText(this.steps, phase || (run.total_steps ? `${whole(run.step)} of ${whole(run.total_steps)}${run.state === "running" ? `, ${percent(run.step / run.total_steps, 0)}` : ""}` : run.step ? whole(run.step) : NONE));
    setText(this.cells.loss, figure(run.loss));
    setText(this.cells.speed, rate(run.tokens_per_s));
    setText(this.why, run.state === "failed" || run.state === "crashed" ? String(run.error || run.exit_meaning || "").split("\n")[0].slice(0, 160) : run.waiting || "");
    this.cells.started.title = clock(run.started_t);
    this.tick();
  }

  tick() {
    const { run } = this;
    const now = serverNow();
    const goes = run.state === "running" || run.state === "paused";
    const end = goes ? now : run.ended_t || run.updated_t;
    setText(this.cells.left, goes && num(run.eta_s) !== null ? seconds(run.eta_s) : NONE);
    setText(this.cells.took, run.started_t && end ? seconds(end - run.started_t) : NONE);
    setText(this.cells.started, ago(run.started_t, now));
  }
}

const part = document.querySelector("[data-part=runs]");
if (part) start(part);
