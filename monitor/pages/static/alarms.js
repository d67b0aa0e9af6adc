// Alarms that a person sets: what is watched, its limit, kept in this browser; those that have rung.
import { el, replace, setText } from "./dom.js";
import { bytes, figure, num, percent, seconds, whole } from "./format.js";

const KEY = "airlock.alarms";
const GIB = 1024 ** 3;
// key, words before and after the limit, the limit as given, whether it is on, and the watch itself:
// given {status, metrics, now, disk_bytes} and the limit, it returns what has happened, or null.
const ALARMS = [
  ["nan", "Loss is NaN or infinite", "", null, true, ({ status, metrics }) => {
    const loss = num(status.loss);
    const all = metrics.series.get("train.loss");
    const bad = all ? all.y.findLastIndex((value) => value !== null && !Number.isFinite(value)) : -1;
    if (bad >= 0) return `The loss was ${figure(all.y[bad])} at step ${whole(all.x[bad])}.`;
    return loss !== null && !Number.isFinite(loss) ? `The loss is ${figure(loss)} at step ${whole(status.step)}.` : null;
  }],
  ["spike", "Loss rises above", "× the usual", 2, true, ({ metrics }, limit) => {
    const all = metrics.series.get("train.loss");
    if (!all || all.y.length < 20) return null;
    const recent = all.y.slice(-51, -1).filter(Number.isFinite).sort((a, b) => a - b);
    const usual = recent[Math.floor(recent.length / 2)];
    const last = all.hi[all.hi.length - 1];
    return usual > 0 && last > limit * usual ? `The loss is ${figure(last)} at step ${whole(all.x[all.x.length - 1])}; usual is ${figure(usual)}.` : null;
  }],
  ["snapshot", "No snapshot of answers for", "× its interval", 2, true, ({ status, metrics }, limit) => {
    const all = metrics.series.get("evolution.loss");
    if (status.state !== "running" || !all || all.x.length < 2) return null;
    const gap = all.x[all.x.length - 1] - all.x[all.x.length - 2];
    const since = status.step - all.x[all.x.length - 1];
    return gap > 0 && since > limit * gap ? `The last snapshot is of step ${whole(all.x[all.x.length - 1])}, ${whole(since)} steps ago; the one before it came ${whole(gap)} steps earlier.` : null;
  }],
  ["idle", "A GPU is idle for", "s while training", 120, true, ({ status, metrics, now }, limit) => {
    if (status.state !== "running" || status.phase !== "training") return null;
    for (const [name, all] of metrics.series) {
      if (!name.startsWith("gpu.utilization_percent")) continue;
      const busy = all.y.findLastIndex((value) => value === null || value > 5);
      const from = all.x[busy + 1];
      const known = all.x.length - busy - 1;
      if (known > 2 && now - from > limit) return `GPU ${name.split("@")[1] || ""} has been idle for ${seconds(now - from)}.`;
    }
    return null;
  }],
  ["memory", "Host memory left is below", "GiB", 4, true, ({ status, metrics }, limit) => {
    const left = metrics.last("host.available_bytes");
    return status.state === "running" && left !== null && left < limit * GIB ? `The host has ${bytes(left)} left.` : null;
  }],
  ["disk", "Disk left is below", "GiB", 10, true, ({ status, disk_bytes }, limit) => (status.state === "running" && num(disk_bytes) !== null && disk_bytes < limit * GIB ? `The disk of the runs has ${bytes(disk_bytes)} left.` : null)],
  ["slow", "Throughput falls below", "% of the best", 50, false, ({ status, metrics }, limit) => {
    const all = metrics.series.get("train.tokens_per_s");
    if (status.state !== "running" || !all || all.y.length < 10) return null;
    const best = Math.max(...all.y.slice(-500).filter(Number.isFinite));
    const last = all.y[all.y.length - 1];
    return last < (limit / 100) * best ? `Throughput is ${percent(last / best, 0)} of the best so far.` : null;
  }],
];

export class Alarms {
  constructor(form, changed) {
    this.chosen = this.stored();
    this.rung = new Map();
    this.told = {};
    form.addEventListener("submit", (event) => event.preventDefault());
    replace(form, ALARMS.map(([key, before, after, limit]) => {
      const on = el("input", { type: "checkbox", checked: this.chosen[key].on, "aria-label": `Alarm: ${before}` });
      on.checked = this.chosen[key].on;
      const value = limit === null ? null : el("input", { type: "number", min: "0", step: "any", value: this.chosen[key].limit, "aria-label": `${before}, ${after}` });
      const keep = () => {
        this.chosen[key] = { on: on.checked, limit: value ? Number(value.value) : null };
        this.rung.delete(key);
        this.store();
        changed();
      };
      on.addEventListener("change", keep);
      if (value) value.addEventListener("change", keep);
      this.told[key] = el("span.told", {});
      return el("label", {}, on, el("span", {}, before), value, value ? el("span", {}, after) : null, this.told[key]);
    }));
  }

  stored() {
    let kept = {};
    try {
      kept = JSON.parse(localStorage.getItem(KEY) || "{}") || {};
    } catch {
      kept = {};
    }
    return Object.fromEntries(ALARMS.map(([key, , , limit, on]) => {
      const one = kept[key];
      return [key, one && typeof one.on === "boolean" ? { on: one.on, limit: limit === null ? null : num(one.limit) ?? limit } : { on, limit }];
    }));
  }

  store() {
    try {
      localStorage.setItem(KEY, JSON.stringify(this.chosen));
    } catch {
      // They hold for this page then.
    }
  }

  // Returns the banners of all alarms that ring now.
  watch(given) {
    const ringing = [];
    for (const [key, before, , , , watch] of ALARMS) {
      const { on, limit } = this.chosen[key];
      const text = on ? watch(given, limit) : null;
      setText(this.told[key], text ? "⚠ rings" : "");
      if (text) ringing.push({ level: key === "nan" || key === "disk" ? "bad" : "warn", title: "Alarm", text, what: before });
    }
    return ringing;
  }
}
