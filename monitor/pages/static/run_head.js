// The head of a run: its state, its figures, and the controls behind the token.
import { ofRun, post, report, token } from "./api.js";
import { el, find, replace, setHidden, setText } from "./dom.js";
import { ago, bytes, clock, figure, NONE, num, percent, power, rate, seconds, whole } from "./format.js";

const TILES = [
  ["step", "Step"],
  ["loss", "Loss"],
  ["lr", "Learning rate"],
  ["speed", "Throughput"],
  ["mfu", "MFU"],
  ["left", "Time left"],
  ["took", "Time so far"],
  ["memory", "Memory of ranks"],
];
const WANTED = { running: ["pause", "save", "evaluate", "stop"], paused: ["resume", "stop"] };

// A launcher that prepares, or waits for its ranks, writes only when something has changed.
const SILENT_S = { training: 30, paused: 60, preparing: 900 };

export class Head {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.values = {};
    replace(find(root, "tiles"), TILES.map(([key, name]) => {
      this.values[key] = el("dd", { data: { tile: key } }, NONE);
      return el("div", {}, el("dt", {}, name), this.values[key]);
    }));
    for (const button of find(root, "controls").querySelectorAll("button")) button.addEventListener("click", () => this.ask(button));
  }

  set(status, now) {
    this.status = status;
    const { root } = this;
    setText(find(root, "name"), status.id);
    document.title = `${status.state === "running" && status.total_steps ? `${percent(status.step / status.total_steps, 0)} ` : ""}${status.name} · ${status.state} · Airlock`;
    find(root, "swatch").className = `swatch c${status.color % 12}`;
    const state = find(root, "state");
    state.dataset.state = status.state;
    setText(state, status.state);
    setText(find(root, "phase"), phase(status));
    setText(find(root, "facts"), facts(status));
    const progress = find(root, "progress");
    if (status.total_steps) progress.value = Math.min(1, status.step / status.total_steps);
    else progress.value = 0;
    this.figures(status);
    this.tick(now);
    this.showControls();
  }

  figures(status) {
    const tell = (key, text, unit) => {
      const node = this.values[key];
      const told = `${text}|${unit || ""}`;
      if (node.dataset.told === told) return;
      node.dataset.told = told;
      replace(node, document.createTextNode(text), unit ? el("small", {}, ` ${unit}`) : null);
    };
    tell("step", whole(status.step), status.total_steps ? `of ${whole(status.total_steps)}` : "");
    tell("loss", figure(status.loss));
    tell("lr", power(status.lr));
    const [speed, ...unit] = rate(status.tokens_per_s).split(" ");
    tell("speed", speed, unit.join(" "));
    tell("mfu", percent(status.mfu));
    const used = (status.ranks || []).reduce((all, rank) => all + (num(rank.pss_anon_bytes) || 0), 0);
    tell("memory", bytes(used || null));
  }

  // What changes with the clock alone.
  tick(now) {
    const { status } = this;
    if (!status) return;
    const goes = status.state === "running" || status.state === "paused";
    const end = goes ? now : status.ended_t || status.updated_t;
    setText(this.values.took, status.started_t && end ? seconds(end - status.started_t) : NONE);
    setText(this.values.left, goes ? seconds(status.eta_s) : NONE);
  }

  showControls() {
    const { root, status } = this;
    const goes = status.state === "running" || status.state === "paused";
    setHidden(find(root, "no-token"), Boolean(report) || !goes || Boolean(token()));
    setHidden(find(root, "controls"), Boolean(report) || !goes || !token());
    const wanted = WANTED[status.state] || [];
    for (const button of find(root, "controls").querySelectorAll("button")) setHidden(button, !wanted.includes(button.dataset.request));
  }

  async ask(button) {
    const { request } = button.dataset;
    if (request === "stop" && !confirm(`Stop ${this.status.id}? It saves a checkpoint and ends; ./airlock run … --resume goes on from there.`)) return;
    const said = find(this.root, "control-said");
    button.disabled = true;
    try {
      await post(ofRun(this.run, "control"), { request });
      said.className = "said";
      setText(said, `Asked to ${request}: the ranks answer between two steps.`);
      setTimeout(() => setText(said, ""), 6000);
    } catch (error) {
      said.className = "said bad";
      setText(said, `Not asked to ${request}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`);
    } finally {
      button.disabled = false;
    }
  }
}

function phase(status) {
  if (status.state === "failed" || status.state === "stopped" || status.state === "preempted") return status.exit_meaning || "";
  if (status.state === "crashed") return "its launcher is gone, without an exit code";
  return status.state === "running" ? `${status.phase}${status.attempt ? `, after ${status.attempt} ${status.attempt === 1 ? "restart" : "restarts"}` : ""}` : "";
}

function facts(status) {
  return [
    status.profile && status.profile !== status.name ? `profile ${status.profile}` : null,
    status.num_ranks ? `${status.num_ranks} ${status.num_ranks === 1 ? "rank" : "ranks"}` : null,
    status.started_t ? `started ${clock(status.started_t)}` : null,
    status.ended_t ? `ended ${clock(status.ended_t)}` : null,
    status.resumed_from ? `goes on from ${status.resumed_from}` : null,
    status.exit_code !== null && status.exit_code !== undefined ? `exit code ${status.exit_code}` : null,
  ].filter(Boolean).join("  ·  ");
}

// What stands above all: a run that has failed, one that waits, one that says nothing.
export function notices(status, now) {
  const told = [];
  const goes = status.state === "running";
  const silent = goes && status.updated_t ? now - status.updated_t : 0;
  if (silent > (SILENT_S[status.phase] || 60) && !report) told.push({ level: "warn", title: "Stale", text: `The run has written nothing for ${seconds(silent)}. These figures are of ${ago(status.updated_t, now)}.`, command: `./airlock doctor ${status.id}` });
  if (status.state === "failed") told.push({ level: "bad", title: "Failed", text: status.error || status.exit_meaning || "", command: `./airlock doctor ${status.id}` });
  if (status.state === "crashed") told.push({ level: "bad", title: "Crashed", text: status.error || "Its launcher is gone and has left no exit code.", command: `./airlock doctor ${status.id}` });
  if (goes && status.waiting) told.push({ level: "warn", title: "Waiting", text: status.waiting, command: `./airlock doctor ${status.id}` });
  if (goes) told.push(...hangs(status));
  return told;
}

// A hang that was reported and has not been taken back since.
function hangs(status) {
  const known = (status.alarms || []).filter((one) => one.attempt === undefined || one.attempt === status.attempt);
  const last = known.filter((one) => one.name === "hang" || one.name === "hang.over").pop();
  if (!last || last.name !== "hang") return [];
  const who = last.failed_rank === null || last.failed_rank === undefined ? "" : `rank ${last.failed_rank}: `;
  return [{ level: "bad", title: "No progress", text: `${who}${last.title || last.cause || ""}`, command: `./airlock doctor ${status.id}` }];
}
