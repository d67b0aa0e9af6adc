// The tail of a log, with a filter; lines are text, whatever they hold.
import { get, ofRun, report } from "./api.js";
import { el, find, replace, setText } from "./dom.js";
import { whole } from "./format.js";
import { calmly } from "./live.js";

const MOST = 2000; // lines that are kept in the page
const SHOW_MS = 200; // between two times that new lines are shown
const LAST = 1000; // lines that are fetched first
const BAD = /\b(error|exception|traceback|failed|fatal|out of memory|killed|bad_alloc|nan)\b/i;
const GATE = /\b(LOCK:|MEM:|INIT:)/;

const SEPARATOR = ", attempt ";
const name = (file) => file.split(SEPARATOR)[0];
const attempt = (file) => file.split(SEPARATOR)[1];

export class Log {
  constructor(root, run) {
    this.root = root;
    this.run = run;
    this.box = find(root, "log");
    this.file = "";
    this.cursor = "";
    this.search = "";
    this.asked = this.answered = 0;
    this.last = 0; // number of the last line
    this.heardLines = [];
    this.showHeard = calmly(() => this.add(this.heardLines.splice(0)), SHOW_MS);
    this.follow = find(root, "log-follow");
    find(root, "log-file").addEventListener("change", (event) => this.open(event.target.value));
    let timer = 0;
    find(root, "log-search").addEventListener("input", (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this.search = event.target.value;
        this.open(this.file);
      }, 250);
    });
    this.box.addEventListener("wheel", () => this.noticed(), { passive: true });
    this.box.addEventListener("keyup", () => this.noticed());
    this.follow.addEventListener("change", () => this.toEnd());
  }

  // Who scrolls up reads: following ends, and begins again at the end.
  noticed() {
    this.follow.checked = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
  }

  async open(file) {
    this.file = file;
    this.cursor = "";
    this.last = 0;
    this.heardLines = [];
    this.box.replaceChildren();
    await this.update();
  }

  async update() {
    this.asked += 1;
    const number = this.asked;
    const { file, search, cursor } = this;
    let said = null;
    try {
      const from = cursor ? { after: cursor } : { last: LAST };
      said = await get(ofRun(this.run, "logs"), report ? { file } : { file: name(file), attempt: attempt(file), search, ...from });
    } catch (error) {
      if (number === this.asked) this.blank(error.message);
      return;
    }
    if (number !== this.asked) return;
    this.answered = number;
    this.files(said.files || []);
    this.cursor = said.cursor || "";
    if (cursor && report) return;
    const lines = report && search ? said.lines.filter((line) => line.text.toLowerCase().includes(search.toLowerCase())) : said.lines;
    const shown = this.last;
    this.add(cursor ? [...this.heardLines.splice(0), ...lines.filter((line) => !(line.n <= shown))] : lines);
    if (lines.length) this.last = Math.max(this.last, lines[lines.length - 1].n || 0);
  }

  // Takes in a line that the stream tells; returns whether it will do, or the server has to be asked.
  heard({ file, n, text }) {
    if (file !== this.file || this.search || !this.cursor || this.answered !== this.asked) return false;
    if (!n || n > this.last + 1) return false;
    if (n <= this.last) return true;
    this.last = n;
    this.heardLines.push({ n, text });
    this.showHeard();
    return true;
  }

  files(found) {
    const names = found.map((one) => (one.attempt === null || one.attempt === undefined ? one.name : `${one.name}${SEPARATOR}${one.attempt}`));
    const select = find(this.root, "log-file");
    if (select.dataset.told === names.join("\n")) return;
    select.dataset.told = names.join("\n");
    replace(select, names.map((one) => el("option", { value: one, selected: one === this.file }, one)));
    if (!this.file && names.length) this.file = select.value;
  }

  add(lines) {
    if (lines.length) for (const note of this.box.querySelectorAll(".empty")) note.remove();
    const part = document.createDocumentFragment();
    for (const { n, text } of lines) part.append(this.line(n, text));
    this.box.append(part);
    while (this.box.childElementCount > MOST) this.box.firstElementChild.remove();
    const shown = this.box.querySelectorAll(".line").length;
    if (!shown) this.blank(this.search ? `No line has “${this.search}”.` : "Nothing has been written yet.");
    setText(find(this.root, "log-said"), shown ? `${whole(shown)} ${shown === 1 ? "line" : "lines"}` : "");
    this.toEnd();
  }

  line(number, text) {
    const kind = BAD.test(text) ? "bad" : GATE.test(text) ? "gate" : "";
    const shown = el("span", {});
    const at = this.search ? text.toLowerCase().indexOf(this.search.toLowerCase()) : -1;
    if (at < 0) shown.append(text);
    else shown.append(text.slice(0, at), el("mark", {}, text.slice(at, at + this.search.length)), text.slice(at + this.search.length));
    return el(kind ? `div.line.${kind}` : "div.line", {}, el("b", { "aria-hidden": "true" }, number ?? ""), shown);
  }

  blank(text) {
    replace(this.box, el("p.empty", {}, text));
  }

  toEnd() {
    if (this.follow.checked) this.box.scrollTop = this.box.scrollHeight;
  }
}
