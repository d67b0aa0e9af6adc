// The doctor's verdicts: what ended each attempt, and the command that mends it, to copy.
import { get, ofRun } from "./api.js";
import { commandLine, el, replace, setHidden } from "./dom.js";

export class Verdicts {
  constructor(host, run) {
    this.host = host;
    this.run = run;
  }

  async update() {
    let found = [];
    try {
      found = (await get(ofRun(this.run, "incidents"))).incidents || [];
    } catch {
      return;
    }
    setHidden(this.host, !found.length);
    const key = JSON.stringify(found);
    if (key === this.drawn) return;
    this.drawn = key;
    replace(this.host, found.map((one) => verdict(one, this.run)));
  }
}

function verdict(one, run) {
  const commands = String(one.do || "").split("\n").map((line) => line.trim()).filter(Boolean);
  const files = (one.files || []).map((name) => name.split("/").slice(2).join("/") || name);
  const isHang = files.some((name) => name.startsWith("hang"));
  const title = one.verdict || (isHang ? "no progress; what the ranks did is kept" : "what was found is kept");
  return el("section.panel.verdict", { "aria-label": `Attempt ${one.attempt}` },
    el("h2", {}, `Attempt ${one.attempt}: ${title}`),
    ...commands.map((line) => (isCommand(line) ? commandLine(line) : el("p", {}, `→ ${line}`))),
    one.text ? el("details", {}, el("summary", {}, "What the doctor found"), el("pre", {}, plain(one.text))) : commandLine(`./airlock doctor ${run}`),
    files.length ? el("details.small", {}, el("summary", {}, `${files.length} ${files.length === 1 ? "file" : "files"} in incidents/incident-attempt${one.attempt}`), el("p.mono", {}, files.join("  "))) : null);
}

function isCommand(line) {
  return /^(\.\/|airlock |python|pip |env |export |ulimit|sudo |nvidia-smi)/.test(line);
}

// The doctor writes Markdown: its signs are left out, its words stay.
function plain(text) {
  const own = text.split("\n## ")[0].replace(/^#+ .*\n+/, "").replace(/^\*\*.*\*\*\n+/, "");
  return own.replaceAll("**", "").replaceAll("`", "").replace(/^→ .*$/gm, "").replace(/\n{3,}/g, "\n\n").trim();
}
