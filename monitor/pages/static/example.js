// One prompt as a card: its expected answer, two answers with their difference, its way over all steps.
import { el, setHidden, setText, svg } from "./dom.js";
import { figure, num } from "./format.js";
import { wordDiff } from "./words.js";

const CELL = 20; // px, of one step in a timeline
const HEIGHT = 22;
const LEAST_KEPT = 0.25; // of the characters; with less, it is another answer
const LONG = 600; // characters; longer texts open on request
export const NAMES = { newly_right: "Newly right", regressed: "Regressed", never_right: "Never right", unstable: "Unstable" };

export class Card {
  // `onStep(place)` is called when a place of the timeline is clicked.
  constructor(id, onStep) {
    this.mark = el("span.mark", {});
    this.kinds = el("span.kinds", {});
    this.facts = el("span.muted.facts", {});
    this.prompt = longText("prompt");
    this.expected = longText("answer");
    this.beforeTitle = el("h3", {});
    this.before = longText("answer");
    this.nowTitle = el("h3", {});
    this.now = el("p.answer.now", { dir: "auto" });
    this.way = svg("svg.way", { role: "img", preserveAspectRatio: "none" });
    this.way.addEventListener("click", (event) => {
      const box = this.way.getBoundingClientRect();
      onStep(Math.min(this.count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * this.count))));
    });
    this.told = "";
    this.node = el("article.example", { "aria-label": `Prompt ${id}`, data: { example: id } },
      el("header", {}, this.mark, el("b.mono", {}, `#${id}`), this.kinds, this.facts),
      this.prompt.node,
      el("div.sides", {},
        el("div", {}, el("h3", {}, "Expected"), this.expected.node),
        (this.beforeSide = el("div", {}, this.beforeTitle, this.before.node)),
        el("div.side-now", {}, this.nowTitle, this.now)),
      this.way);
  }

  // row: {now, before, kinds, right, similarity, at, beforeTitle, nowTitle}; an answer may be null.
  set(row) {
    const told = JSON.stringify([row.now, row.before, row.kinds, row.beforeTitle, row.nowTitle]);
    if (told !== this.told) this.words(row);
    this.told = told;
    this.draw(row);
  }

  words(row) {
    const { now, before } = row;
    const any = now || before;
    this.mark.className = `mark ${now ? (now.isRight ? "right" : "wrong") : "absent"}`;
    setText(this.mark, now ? (now.isRight ? "✓ right" : "✕ wrong") : "– no answer");
    this.kinds.replaceChildren(...row.kinds.map((kind) => el(`span.kind.${kind}`, {}, NAMES[kind])));
    setText(this.facts, now ? `similarity ${figure(now.similarity, 3)} · loss ${figure(now.loss, 3)}` : "");
    this.prompt.set(any.input);
    this.expected.set(any.expected);
    setHidden(this.beforeSide, !row.beforeTitle);
    setText(this.beforeTitle, row.beforeTitle || "");
    this.before.set(before ? before.output : "", "(no answer)");
    setText(this.nowTitle, row.nowTitle);
    this.now.replaceChildren(...(now ? pieces(before ? before.output : now.output, now.output) : [el("i.muted", {}, "(no answer)")]));
  }

  draw({ right, similarity, at, steps }) {
    const key = JSON.stringify([right, similarity]);
    if (key !== this.drawn) {
      this.drawn = key;
      this.count = right.length;
      this.way.setAttribute("viewBox", `0 0 ${CELL * right.length} ${HEIGHT}`);
      this.way.style.setProperty("max-width", `${CELL * right.length}px`);
      this.here = svg("rect.here", { y: 0.5, width: CELL - 1, height: HEIGHT - 1, rx: 2 });
      this.way.replaceChildren(this.here, ...right.map((one, place) => cell(one, similarity[place], place, steps[place])));
      this.way.setAttribute("aria-label", spoken(right, steps));
    }
    this.here.setAttribute("x", String(CELL * at + 0.5));
  }
}

// Right: a full bar. Wrong: a hollow one, as high as the answer is similar. Not known: a dot.
function cell(isRight, similarity, place, step) {
  const x = CELL * place + 3;
  const width = CELL - 6;
  const told = isRight === null || isRight === undefined ? "no answer" : isRight ? "right" : `wrong, similarity ${figure(similarity, 2)}`;
  const title = svg("title", {}, `step ${step}: ${told}`);
  if (isRight === null || isRight === undefined) return svg("circle.absent", { cx: x + width / 2, cy: HEIGHT - 5, r: 1.5 }, title);
  const known = num(similarity);
  const height = isRight ? HEIGHT - 6 : 3 + Math.min(1, Math.max(0, Number.isFinite(known) ? known : 0)) * (HEIGHT - 12);
  return svg(isRight ? "rect.right" : "rect.wrong", { x, y: HEIGHT - 3 - height, width, height, rx: 1.5 }, title);
}

function spoken(right, steps) {
  const at = steps.filter((_, place) => right[place] === true);
  if (!at.length) return `Right at none of ${steps.length} steps`;
  return `Right at ${at.length} of ${steps.length} steps: ${at.slice(0, 12).join(", ")}${at.length > 12 ? ", …" : ""}`;
}

// The answer now, with what was added and removed; of another answer altogether, which stands beside
// it, nothing is shown as removed.
function pieces(before, now) {
  if (!now && !before) return [el("i.muted", {}, "(empty)")];
  const found = wordDiff(before, now);
  const kept = found.reduce((sum, [change, text]) => sum + (change === "same" ? text.trim().length : 0), 0);
  if (kept < LEAST_KEPT * Math.max(before.length, now.length)) return now ? [el("ins.all", {}, now)] : [el("i.muted", {}, "(empty)")];
  return found.map(([change, text]) => (change === "same" ? document.createTextNode(text) : el(change === "added" ? "ins" : "del", {}, text)));
}

// A text as it is, with its line breaks; a long one shows its beginning, and the rest on request.
function longText(name) {
  const shown = el(`p.${name}`, { dir: "auto" });
  const button = el("button.quiet.small", { type: "button", hidden: true });
  let whole = "";
  let isOpen = false;
  const show = () => {
    setText(shown, whole.length > LONG && !isOpen ? `${whole.slice(0, LONG)}…` : whole);
    setText(button, isOpen ? "Show less" : `Show all ${whole.length.toLocaleString("en-US")} characters`);
    setHidden(button, whole.length <= LONG);
  };
  button.addEventListener("click", () => {
    isOpen = !isOpen;
    show();
  });
  const set = (text, none = "(empty)") => {
    whole = text || none;
    shown.classList.toggle("muted", !text);
    show();
  };
  return { node: el("div", {}, shown, button), set };
}
