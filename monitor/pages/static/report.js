// A report: the parts of one run, one of which is shown; all that they ask for lies in the file.
import { report } from "./api.js";
import { setText } from "./dom.js";
import { start as startConfig } from "./config.js";
import { start as startEvolution } from "./evolution.js";
import { clock, whole } from "./format.js";
import { start as startRun } from "./run.js";

const STARTS = { run: startRun, evolution: startEvolution, config: startConfig };
const started = new Set();

function show() {
  const name = location.hash.slice(1) in STARTS ? location.hash.slice(1) : "run";
  for (const key of Object.keys(STARTS)) document.querySelector(`[data-part="${key}"]`).hidden = key !== name;
  for (const link of document.querySelectorAll("[data-part-link]")) {
    if (link.dataset.partLink === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // Charts are made where they can be seen: hidden they have no width.
  if (!started.has(name)) STARTS[name](document.querySelector(`[data-part="${name}"]`));
  started.add(name);
}

if (report) {
  const left = report.left_out ? `, without ${whole(report.left_out)} snapshots for its size` : "";
  setText(document.querySelector("[data-made]"), `made ${clock(report.made_t)}${left}`);
  for (const button of document.querySelectorAll("[data-part=run] form")) button.closest("section").hidden = true;
  addEventListener("hashchange", show);
  show();
}
