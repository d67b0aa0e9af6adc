// How many answers are right, and their loss, over all steps; of a second run beside, dashed.
import { Chart } from "./charts.js";
import { figure, num, percent, whole } from "./format.js";

export class Trends {
  // `onStep(step)` is called with the step under the cursor that was clicked.
  constructor(rightHost, lossHost, onStep) {
    const spec = { x: "step", height: 150, group: "answers" };
    this.right = new Chart(rightHost, { ...spec, title: "Right answers and similarity", fixed: [0, 1.04], format: (value) => percent(value, 0) });
    this.loss = new Chart(lossHost, { ...spec, title: "Loss of the expected answers", format: (value) => figure(value, 3) });
    this.lines = { right: [], loss: [] };
    this.step = 0;
    for (const chart of [this.right, this.loss]) {
      chart.canvas.addEventListener("click", () => {
        const at = chart.plot && chart.plot.cursor.idx;
        if (at !== null && at !== undefined) onStep(chart.plot.data[0][at]);
      });
    }
  }

  set(answers, other) {
    const line = (run, key, label, color, dash) => {
      const rows = run.snapshots.map((one) => [one.step, num(one.summary[key])]).filter(([, value]) => value !== null && Number.isFinite(value));
      return { key: `${run.run} ${key}`, label: other ? `${label} · ${short(run, run === answers ? other : answers)}` : label, color, dash, x: rows.map(([step]) => step), y: rows.map(([, value]) => value), lo: null, hi: null, points: rows.length < 40 };
    };
    const runs = [[answers, []], ...(other ? [[other, [6, 3]]] : [])];
    this.lines = {
      right: runs.flatMap(([run, dash]) => [line(run, "accuracy", "right", "--c2", dash), line(run, "similarity", "similarity", "--c0", dash)]),
      loss: runs.map(([run, dash]) => line(run, "avg_loss", "loss", "--c1", dash)),
    };
    this.draw();
  }

  mark(step) {
    this.step = step;
    this.draw();
  }

  draw() {
    const marks = [{ x: this.step, label: `step ${whole(this.step)}` }];
    this.right.set(this.lines.right, { marks });
    this.loss.set(this.lines.loss, { marks });
  }
}

// The end of a run's id that tells it from the other's.
function short(run, other) {
  const tail = run.run.slice(-4);
  return tail && tail !== other.run.slice(-4) ? tail : run.run;
}
