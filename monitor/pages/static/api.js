// The only module that asks the server; in a report, what was asked for lies in the file itself.

const TOKEN = "airlock.token";

export class ApiError extends Error {
  constructor(status, text, hint) {
    super(text);
    this.status = status;
    this.hint = hint || "";
  }
}

// What a report holds: {"made_t", "run", "answers": {path: JSON}}; null on a served page.
export const report = (() => {
  const node = document.getElementById("report-data");
  return node ? JSON.parse(node.textContent) : null;
})();

// The token comes in the URL's fragment, which no server and no log sees, and leaves the URL at once.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given && !report) {
  remember(TOKEN, given);
  history.replaceState(null, "", location.pathname + location.search);
}

function remember(key, value) {
  try {
    sessionStorage.setItem(key, value);
  } catch {
    // Without storage the controls are away after the next click.
  }
}

export function token() {
  if (report) return "";
  try {
    return sessionStorage.getItem(TOKEN) || given || "";
  } catch {
    return given || "";
  }
}

export function headers(more) {
  const all = new Headers(more || {});
  if (token()) all.set("Authorization", `Bearer ${token()}`);
  return all;
}

// get("api/runs", { limit: 50 }): parameters that are "", null or undefined are left out.
export async function get(path, parameters, options) {
  if (report) return fromReport(path, parameters || {});
  const answer = await fetch(url(path, parameters), { headers: headers({ Accept: "application/json" }), cache: "no-store", credentials: "omit", ...options });
  return read(answer);
}

export async function post(path, body) {
  if (report) throw new ApiError(400, "This is a report, a picture of a run: it controls nothing.", "");
  const answer = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), credentials: "omit" });
  return read(answer);
}

export function url(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// The path of a run's endpoint; the name is a part of it, whatever it holds.
export function ofRun(run, endpoint) {
  return `api/runs/${encodeURIComponent(run)}/${endpoint}`;
}

// The server's clock, by the Date of its last answer: the browser's own may be wrong.
let offset_s = 0;

export function serverNow() {
  return report ? report.made_t : Date.now() / 1000 + offset_s;
}

function heardAt(answer) {
  const told = Date.parse(answer.headers.get("Date") || "");
  const off_s = told ? told / 1000 + 0.5 - Date.now() / 1000 : 0;
  offset_s = Math.abs(off_s) > 2 ? off_s : 0;
}

async function read(answer) {
  heardAt(answer);
  let said = null;
  try {
    said = await answer.json();
  } catch {
    said = null;
  }
  if (!answer.ok) throw new ApiError(answer.status, (said && said.error) || `the server answered ${answer.status}`, (said && said.hint) || "");
  if (said === null) throw new ApiError(answer.status, "the server's answer is no JSON", "");
  return said;
}

function fromReport(path, parameters) {
  const exact = report.answers[url(path, parameters)];
  const said = exact === undefined ? report.answers[path] : exact;
  if (said === undefined) throw new ApiError(404, "This is not part of the report.", "");
  if (!path.endsWith("/metrics")) return said;
  const wanted = String(parameters.series || "").split(",").filter(Boolean);
  if (!wanted.length) return said;
  const series = Object.entries(said.series).filter(([name]) => wanted.some((one) => name === one || (one.endsWith("@*") && name.startsWith(one.slice(0, -1)))));
  return { ...said, series: Object.fromEntries(series) };
}
