// Figures as people read them, each with its unit; what is not known is a dash.

export const NONE = "–";

// Numbers as the run folder writes them: NaN and infinities are strings there.
export function num(value) {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return null;
  const said = value.trim().toLowerCase().replace("+", "");
  if (said === "nan") return NaN;
  if (said === "inf" || said === "infinity") return Infinity;
  if (said === "-inf" || said === "-infinity") return -Infinity;
  const read = Number(said);
  return said && !Number.isNaN(read) ? read : null;
}

// A number of four figures, such as 0.01234, 12.34, 1,234, 1.2e-5.
export function figure(value, digits = 4) {
  const given = num(value);
  if (given === null) return NONE;
  if (!Number.isFinite(given)) return Number.isNaN(given) ? "NaN" : given > 0 ? "∞" : "−∞";
  const size = Math.abs(given);
  if (size === 0) return "0";
  if (size < 0.001 || size >= 1e9) return given.toExponential(2).replaceAll("-", "−").replace("e+", "e");
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return given.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−");
}

// A learning rate: 3.00e−4.
export function power(value, digits = 3) {
  const given = num(value);
  if (given === null || !Number.isFinite(given) || given === 0) return figure(given);
  return given.toExponential(digits - 1).replaceAll("-", "−").replace("e+", "e");
}

export function whole(value) {
  const given = num(value);
  return given === null || !Number.isFinite(given) ? NONE : Math.round(given).toLocaleString("en-US");
}

export function bytes(value) {
  const given = num(value);
  if (given === null || !Number.isFinite(given)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = Math.abs(given);
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  const places = at === 0 || left >= 100 ? 0 : left >= 10 ? 1 : 2;
  return `${given < 0 ? "−" : ""}${left.toFixed(places)} ${units[at]}`;
}

export function seconds(value) {
  const given = num(value);
  if (given === null || !Number.isFinite(given)) return NONE;
  if (given < 0) return `−${seconds(-given)}`;
  if (given < 0.9995) return `${(given * 1000).toFixed(given < 0.00995 ? 1 : 0)} ms`;
  if (given < 59.95) return `${given.toFixed(given < 9.995 ? 1 : 0)} s`;
  const all = Math.round(given);
  if (all < 3600) return `${Math.floor(all / 60)} min ${String(all % 60).padStart(2, "0")} s`;
  const hours = Math.floor(all / 3600);
  const minutes = String(Math.floor((all % 3600) / 60)).padStart(2, "0");
  return hours < 48 ? `${hours} h ${minutes} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function percent(value, places = 1) {
  const given = num(value);
  return given === null || !Number.isFinite(given) ? NONE : `${(given * 100).toFixed(places)} %`;
}

// 1234 -> 1.23 k; for rates.
export function short(value) {
  const given = num(value);
  if (given === null || !Number.isFinite(given)) return NONE;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(given) >= size * 0.9995) return `${(given / size).toPrecision(3)} ${unit}`;
  }
  return given === 0 ? "0" : given.toPrecision(3);
}

export function rate(value) {
  const said = short(value);
  if (said === NONE) return NONE;
  return /[a-z]$/i.test(said) ? `${said}tok/s` : `${said} tok/s`;
}

export function ago(t, now) {
  const given = num(t);
  if (given === null || given <= 0) return NONE;
  const since = Math.max(0, now - given);
  if (since < 5) return "just now";
  if (since < 120) return `${Math.round(since)} s ago`;
  if (since < 7200) return `${Math.round(since / 60)} min ago`;
  if (since < 48 * 3600) return `${Math.round(since / 3600)} h ago`;
  return `${Math.round(since / 86400)} days ago`;
}

export function clock(t) {
  const given = num(t);
  return given === null || given <= 0 ? NONE : new Date(given * 1000).toLocaleString("sv-SE");
}

export function clockTime(t) {
  const given = num(t);
  return given === null || given <= 0 ? NONE : new Date(given * 1000).toLocaleTimeString("sv-SE");
}
