// The frame of every page: colours, which page this is, links to the views of a run, live or not.
import { report } from "./api.js";
import { setHidden, setText } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };
const SAID = { auto: "as the system has them", light: "light", dark: "dark" };

// The run that the URL names; "latest" where it names none.
export function runOfPage() {
  return report ? report.run : new URLSearchParams(location.search).get("run") || "latest";
}

// Calls `redraw` whenever light becomes dark or the other way round.
export function onTheme(redraw) {
  document.addEventListener("airlock-theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// The mark beside the switch: "live", "still" (nothing is awaited), "lost", "hidden".
export function showLive(state, text) {
  const mark = document.querySelector("[data-live]");
  setHidden(mark, false);
  mark.dataset.state = state;
  setText(mark.querySelector("[data-live-text]"), text);
}

// Links between the views of one run.
export function showViews(run, page) {
  const views = document.querySelector("[data-views]");
  if (report) return;
  for (const link of views.querySelectorAll("[data-view]")) {
    link.href = `${link.dataset.view}?run=${encodeURIComponent(run)}`;
    mark(link, link.dataset.view === page);
  }
  setHidden(views, false);
}

function mark(link, isHere) {
  if (isHere) link.setAttribute("aria-current", "page");
  else link.removeAttribute("aria-current");
}

function switchTheme(button) {
  const now = document.documentElement.dataset.theme || "auto";
  showTheme(button, THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  document.dispatchEvent(new Event("airlock-theme"));
}

function showTheme(button, theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("airlock.theme", theme);
  } catch {
    // It holds for this page then.
  }
  setText(button.querySelector("[data-theme-name]"), NAMES[theme]);
  button.title = `Colours: ${SAID[theme]}`;
}

const page = document.body.dataset.page;
const button = document.querySelector("[data-theme-switch]");
showTheme(button, document.documentElement.dataset.theme || "auto");
button.addEventListener("click", () => switchTheme(button));
for (const link of document.querySelectorAll("[data-nav]")) mark(link, link.dataset.nav === page);
if (["run", "evolution", "config"].includes(page)) showViews(runOfPage(), page);
