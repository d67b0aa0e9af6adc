// The configuration of a run: each setting with where its value comes from.
import { get, ofRun } from "./api.js";
import { commandLine, el, empty, find, replace, setText } from "./dom.js";
import { whole } from "./format.js";
import { runOfPage } from "./frame.js";

export async function start(root) {
  let said = null;
  let row = null;
  try {
    [said, row] = await Promise.all([get(ofRun(runOfPage(), "config")), get(ofRun(runOfPage(), "status"))]);
  } catch (error) {
    replace(root, el("section.panel", {}, empty(error.message, error.hint)));
    return;
  }
  setText(find(root, "config-name"), row.id);
  find(root, "config-swatch").className = `swatch c${row.color % 12}`;
  setText(find(root, "config-said"), "What the run was started with. Secrets are masked.");
  if (said.command) replace(find(root, "config-command"), commandLine(String(said.command).split("\n")[0]));
  const from = sources(said.text || "");
  const all = Object.entries(said.values || {}).map(([name, value]) => ({ name, value: shown(value), from: from.get(name) || "" }));
  const draw = () => list(root, all);
  find(root, "config-search").addEventListener("input", draw);
  find(root, "config-own").addEventListener("change", draw);
  draw();
  made(root, said.made_with || {});
}

function list(root, all) {
  const wanted = find(root, "config-search").value.toLowerCase();
  const own = find(root, "config-own").checked;
  const found = all.filter((one) => (!wanted || `${one.name} ${one.value}`.toLowerCase().includes(wanted)) && (!own || one.from !== "default"));
  replace(find(root, "config-rows"), found.map((one) => el(one.from === "default" ? "tr.default" : "tr", {}, el("th.mono", { scope: "row" }, one.name), el("td.mono", {}, one.value), el("td.muted", {}, one.from))));
  if (!found.length) replace(find(root, "config-rows"), el("tr", {}, el("td", { colspan: 3 }, empty("No setting is like that."))));
  setText(find(root, "config-count"), `${whole(found.length)} of ${whole(all.length)}`);
}

// config.toml says behind each value where it comes from: `key = value  # profile tiny.toml`.
export function sources(text) {
  const found = new Map();
  let section = "";
  for (const line of text.split("\n")) {
    const head = /^\[([^\]]+)\]/.exec(line);
    if (head) section = `${head[1]}.`;
    const pair = /^([A-Za-z0-9_-]+) = .*?(?:\s{2}# (.*))?$/.exec(line);
    if (pair) found.set(section + pair[1], pair[2] || "");
  }
  return found;
}

export function shown(value) {
  if (value === null || value === undefined) return "";
  if (value === "") return "“”";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function made(root, told) {
  const pairs = [["commit", told.commit], ...Object.entries(told.versions || {})].filter(([, value]) => value);
  const others = Object.entries(told).filter(([key, value]) => !["commit", "versions"].includes(key) && typeof value !== "object");
  replace(find(root, "config-made"), [...pairs, ...others].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd.mono", {}, String(value)))));
  if (!pairs.length && !others.length) replace(find(root, "config-made"), empty("The run has not said what it was made with."));
}

const part = document.querySelector("[data-part=config]");
if (part && document.body.dataset.page === "config") start(part);
