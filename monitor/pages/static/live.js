// What the server sends while the page is looked at: server-sent events, read by fetch.
// EventSource would do, but it can send no token, and keeps one of the six connections of a hidden tab.
import { headers, report, url } from "./api.js";
import { showLive } from "./frame.js";

const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 15;
const SILENT_S = 30; // without even a ping, the connection is taken for dead

// live("api/stream", { runs: (data) => … }, refresh): `refresh` runs whenever a stream has begun,
// so that what was missed while the page was hidden, or the server away, is fetched.
export function live(path, handlers, refresh) {
  const stream = new Stream(path, handlers, refresh);
  if (report) {
    showLive("still", "Report");
    refresh();
    return stream;
  }
  document.addEventListener("visibilitychange", () => stream.looked());
  addEventListener("online", () => stream.looked());
  stream.looked();
  return stream;
}

class Stream {
  constructor(path, handlers, refresh) {
    Object.assign(this, { path, handlers, refresh });
    this.cursor = "";
    this.wait_s = FIRST_WAIT_S;
    this.stopper = null;
    this.timer = 0;
    this.heard_t = 0;
    this.isOver = false;
  }

  // Nothing more is awaited: the run is over.
  end(text) {
    this.isOver = true;
    this.close();
    showLive("still", text);
  }

  looked() {
    if (this.isOver) return;
    if (document.hidden) {
      this.close();
      showLive("hidden", "Paused");
    } else if (!this.stopper) this.open();
  }

  close() {
    clearTimeout(this.timer);
    if (this.stopper) this.stopper.abort();
    this.stopper = null;
  }

  async open() {
    clearTimeout(this.timer);
    const stopper = new AbortController();
    this.stopper = stopper;
    const watch = setInterval(() => {
      if (Date.now() / 1000 - this.heard_t > SILENT_S) stopper.abort();
    }, 5000);
    this.heard_t = Date.now() / 1000;
    let isThere = false;
    try {
      const asked = headers({ Accept: "text/event-stream", ...(this.cursor ? { "Last-Event-ID": this.cursor } : {}) });
      const answer = await fetch(url(this.path, { cursor: this.cursor }), { headers: asked, signal: stopper.signal, cache: "no-store", credentials: "omit" });
      isThere = true;
      if (!answer.ok || !answer.body) throw new Error(`the server answered ${answer.status}`);
      showLive("live", "Live");
      this.wait_s = FIRST_WAIT_S;
      this.refresh();
      await this.read(answer.body.getReader());
    } catch {
      // Lost, hidden, or the server is away: told below, and tried again.
    } finally {
      clearInterval(watch);
    }
    if (this.stopper !== stopper) return;
    this.stopper = null;
    if (this.isOver || document.hidden) return;
    showLive("lost", isThere ? "No stream" : "No server");
    if (isThere) this.refresh(); // without a stream, as behind some proxies, by asking now and then
    if (this.isOver) return;
    this.timer = setTimeout(() => this.looked(), this.wait_s * 1000);
    this.wait_s = Math.min(LONGEST_WAIT_S, this.wait_s * 1.6);
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.heard_t = Date.now() / 1000;
      const parts = (rest + decoder.decode(value, { stream: true })).replace(/\r\n?/g, "\n").split("\n\n");
      rest = parts.pop();
      for (const part of parts) this.take(part);
    }
  }

  take(part) {
    let name = "message";
    const data = [];
    for (const line of part.split("\n")) {
      const at = line.indexOf(":");
      const field = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
      if (field === "event") name = value;
      else if (field === "id") this.cursor = value;
      else if (field === "data") data.push(value);
    }
    const handler = this.handlers[name];
    if (!handler || !data.length) return;
    let said = null;
    try {
      said = JSON.parse(data.join("\n"));
    } catch {
      return;
    }
    handler(said);
  }
}

// Calls `work` at most every `wait_ms`, and once more after the last call.
export function calmly(work, wait_ms) {
  let timer = 0;
  let last = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      last = Date.now();
      work();
    }, Math.max(0, wait_ms - (Date.now() - last)));
  };
}
