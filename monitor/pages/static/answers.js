// The answers of one run to one data set: snapshots as they are needed, and what becomes of prompts.
import { get } from "./api.js";

const MOST_KEPT = 16; // snapshots with their texts
const PAGE = 500;
const MOST_EXAMPLES = 5000;
export const FILTERS = ["newly_right", "regressed", "never_right", "unstable"];

export class Answers {
  constructor(run, dataset) {
    this.run = run;
    this.path = `api/evolution/${encodeURIComponent(dataset)}`;
    this.snapshots = [];
    this.broken = [];
    this.rows = new Map();
    this.total = 0;
    this.kept = new Map();
  }

  // Reads which snapshots there are, and each prompt's way through them.
  async refresh() {
    const { run } = this;
    const found = await get(`${this.path}/snapshots`, { run });
    const rows = new Map();
    let told = null;
    do {
      told = await get(`${this.path}/examples`, { run, limit: PAGE, offset: rows.size });
      const before = rows.size;
      for (const row of told.examples) rows.set(row.example_id, row);
      if (rows.size === before) break;
    } while (rows.size < told.total && rows.size < MOST_EXAMPLES);
    // A step may have come, or gone, between the two.
    const both = new Map(told.steps.map((step, place) => [step, place]));
    this.places = both;
    this.broken = found.snapshots.filter((one) => one.error);
    this.snapshots = found.snapshots.filter((one) => !one.error && both.has(one.step));
    this.rows = rows;
    this.total = told.total;
  }

  get steps() {
    return this.snapshots.map((one) => one.step);
  }

  // The place of a step, or of the nearest one before it, in `steps`.
  placeOf(step) {
    let place = 0;
    this.steps.forEach((one, at) => {
      if (one <= step) place = at;
    });
    return place;
  }

  // The examples of a snapshot by their number: {input, expected_output, model_output, …}.
  async at(step) {
    let kept = this.kept.get(step);
    this.kept.delete(step);
    kept = kept || get(`${this.path}/snapshot/${step}`, { run: this.run }).then(checked);
    this.kept.set(step, kept);
    while (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
    try {
      return await kept;
    } catch (error) {
      this.kept.delete(step);
      throw error;
    }
  }

  // Whether a prompt was answered rightly at each step: true, false, or null where it is not known.
  right(id) {
    const row = this.rows.get(id);
    return row ? this.steps.map((step) => row.exact_match[this.places.get(step)]) : this.steps.map(() => null);
  }

  similarity(id) {
    const row = this.rows.get(id);
    return row ? this.steps.map((step) => row.similarity[this.places.get(step)]) : this.steps.map(() => null);
  }
}

// A snapshot's file is what a run wrote: its fields may be of any kind.
function checked(said) {
  const found = new Map();
  said.examples.forEach((row, place) => {
    if (!row || typeof row !== "object" || Array.isArray(row)) return;
    const id = Number.isSafeInteger(row.example_id) ? row.example_id : place;
    if (found.has(id)) return;
    found.set(id, { id, input: text(row.input), expected: text(row.expected_output), output: text(row.model_output), isRight: row.exact_match === true, similarity: row.similarity, loss: row.loss });
  });
  return found;
}

function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

// What a prompt is at the place `at` of its way, beside what it was: as monitor/answers/history.py
// has it, but for two runs, where only the two answers count.
export function kinds(right, at, wasRight, isRight, isOtherRun) {
  const known = right.filter((one) => one !== null);
  const before = right.slice(0, at).filter((one) => one !== null);
  const changes = known.filter((one, place) => place > 0 && one !== known[place - 1]).length;
  const told = {
    newly_right: wasRight === false && isRight === true,
    regressed: isRight === false && (wasRight === true || (!isOtherRun && before.includes(true))),
    never_right: known.length > 0 && !known.includes(true),
    unstable: changes >= 2,
  };
  return FILTERS.filter((name) => told[name]);
}
