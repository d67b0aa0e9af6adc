// The inbox: what it trains now, what waits, what became of the rest.
import { get, post, serverNow, token } from "./api.js";
import { el, empty, find, replace, setHidden, setText } from "./dom.js";
import { ago, figure, NONE, percent, whole } from "./format.js";
import { showLive } from "./frame.js";

const EVERY_S = 2;
const LISTS = [["processing", "Training now"], ["queue", "Waiting"], ["failed", "Set aside"], ["done", "Done"]];

export function start(root) {
  new InboxPage(root).start();
}

class InboxPage {
  constructor(root) {
    this.root = root;
    for (const button of find(root, "controls").querySelectorAll("button")) button.addEventListener("click", () => this.ask(button));
  }

  start() {
    this.read();
    document.addEventListener("visibilitychange", () => !document.hidden && this.read());
    this.timer = setInterval(() => !document.hidden && this.read(), EVERY_S * 1000);
  }

  async read() {
    let said = null;
    try {
      said = await get("api/inbox_files");
      showLive("live", "Live");
    } catch (error) {
      showLive(error.status ? "still" : "lost", error.status ? "No inbox" : "No server");
      if (error.status) this.nothing(error);
      return;
    }
    this.show(said);
  }

  nothing(error) {
    setText(find(this.root, "why"), "");
    setText(find(this.root, "state"), "none");
    find(this.root, "tiles").replaceChildren();
    if (error.status === 404) clearInterval(this.timer); // the server has none, and will have none
    replace(find(this.root, "lists"), el("section.panel", {}, empty("No inbox is served here", "An inbox trains whatever is dropped into its folder, one file after the other. Show one with:", "./airlock monitor --inbox FOLDER")));
  }

  show(said) {
    const told = said.status || {};
    const state = String(told.status || NONE);
    const mark = find(this.root, "state");
    setText(mark, state);
    mark.dataset.state = { training: "running", scoring: "running", hashing: "running", paused: "paused", stopped: "stopped" }[state] || "";
    setText(find(this.root, "why"), told.why || "");
    const isRunning = Boolean(told.is_running);
    setHidden(find(this.root, "controls"), !token() || !isRunning);
    setHidden(find(this.root, "no-token"), Boolean(token()) || !isRunning);
    for (const button of find(this.root, "controls").querySelectorAll("button")) {
      const { request } = button.dataset;
      setHidden(button, (request === "pause" && Boolean(told.paused)) || (request === "resume" && !told.paused) || (request === "skip" && !told.current_file));
    }
    const share = told.total_steps ? told.current_step / told.total_steps : null;
    this.tiles([["File", told.current_file || NONE], ["Step", `${whole(told.current_step)}${told.total_steps ? ` of ${whole(told.total_steps)}` : ""}`], ["Done", percent(share, 0)], ["Loss", figure(told.loss)], ["Waiting", whole((told.num || {}).queue)], ["Trained", whole((told.num || {}).done)], ["Set aside", whole((told.num || {}).failed)]]);
    const error = told.error ? [el("div.banner.bad", {}, el("b", {}, "Inbox"), el("span", {}, told.error))] : [];
    replace(find(this.root, "banners"), error);
    this.lists(said);
  }

  tiles(pairs) {
    const host = find(this.root, "tiles");
    if (host.childElementCount !== pairs.length) replace(host, pairs.map(([name]) => el("div", {}, el("dt", {}, name), el("dd", {}))));
    pairs.forEach(([, value], at) => setText(host.children[at].lastChild, value));
  }

  lists(said) {
    const all = said.files || [];
    const key = JSON.stringify(all);
    if (key === this.drawn) return;
    this.drawn = key;
    const made = LISTS.map(([state, title]) => [title, all.filter((one) => one.state === state)]).filter(([, some]) => some.length).map(([title, some]) => list(title, some));
    replace(find(this.root, "lists"), made.length ? made : el("section.panel", {}, empty("Nothing has been dropped yet", "Copy a file of training data into the folder, or type:", "./airlock inbox add FILE")));
  }

  async ask(button) {
    const { request } = button.dataset;
    if (request !== "resume" && request !== "pause" && !confirm(request === "stop" ? "Stop the inbox? Its training saves, and goes on next time." : "Set this file aside?")) return;
    const said = find(this.root, "said");
    try {
      await post("api/inbox/control", { request });
      said.className = "said";
      setText(said, `Asked to ${request}.`);
      setTimeout(() => setText(said, ""), 5000);
    } catch (error) {
      said.className = "said bad";
      setText(said, `Not asked to ${request}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`);
    }
    this.read();
  }
}

function list(title, some) {
  const rows = some.map((one) => {
    const last = one.attempts.length ? one.attempts[one.attempts.length - 1] : {};
    const result = [one.result, one.reason && one.reason !== one.result ? one.reason : null].filter(Boolean).join(": ");
    return el("tr", {}, el("th", { scope: "row" }, one.name), el("td", {}, one.priority), el("td", {}, result), el("td.n", {}, whole(one.attempts.length)), el("td.n", {}, ago(last.ended_t || last.started_t || one.dropped_t, serverNow())));
  });
  const heads = ["File", "Priority", "What became of it"].map((name) => el("th", { scope: "col" }, name));
  const figures = ["Attempts", "When"].map((name) => el("th.n", { scope: "col" }, name));
  return el("section.panel", { "aria-label": title }, el("header", {}, el("h2", {}, title), el("span.muted", {}, whole(some.length))), el("div.scroll", { tabindex: "0", role: "region", "aria-label": `${title}, as a table` }, el("table", {}, el("thead", {}, el("tr", {}, heads, figures)), el("tbody", {}, rows))));
}

const part = document.querySelector("[data-part=inbox]");
if (part) start(part);
