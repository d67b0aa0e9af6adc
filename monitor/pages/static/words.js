// The difference of two texts, word by word, after Myers; monitor/answers/words.py is the same.
const MOST_CHANGES = 300; // words added or removed; with more, all in between counts as changed
const SPACE = " \\t\\n\\r\\f\\v\\u00a0\\u2000-\\u200a\\u2028\\u2029\\u202f\\u3000";
const SINGLE = "\\u3040-\\u30ff\\u3400-\\u9fff\\uac00-\\ud7af"; // written without spaces between words
const WORD = new RegExp(`[${SPACE}]+|[${SINGLE}]|(?:(?![${SINGLE}])[\\p{L}\\p{N}_])+|[^\\p{L}\\p{N}_${SPACE}]`, "gu");
const BLANK = new RegExp(`^[${SPACE}]+$`, "u");

// The pieces of both texts in order, [["same" | "removed" | "added", text]].
export function wordDiff(before, after) {
  const old = before.match(WORD) || [];
  const now = after.match(WORD) || [];
  let start = 0;
  while (start < Math.min(old.length, now.length) && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < Math.min(old.length, now.length) - start && old[old.length - 1 - end] === now[now.length - 1 - end]) end += 1;
  const same = (words) => words.map((word) => ["same", word]);
  return joined([
    ...same(old.slice(0, start)),
    ...middle(old.slice(start, old.length - end), now.slice(start, now.length - end)),
    ...same(old.slice(old.length - end)),
  ]);
}

// The shortest way; reach.get(k): how far into `old` so many changes lead on the diagonal k = x - y.
function middle(old, now) {
  const trace = [];
  let reach = new Map([[1, 0]]);
  const most = Math.min(old.length + now.length, MOST_CHANGES);
  for (let changes = 0; changes <= most; changes += 1) {
    trace.push(reach);
    reach = new Map();
    for (let diagonal = -changes; diagonal <= changes; diagonal += 2) {
      const before = trace[changes];
      let x = isDown(before, diagonal, changes) ? before.get(diagonal + 1) : before.get(diagonal - 1) + 1;
      while (x < old.length && x - diagonal < now.length && old[x] === now[x - diagonal]) x += 1;
      reach.set(diagonal, x);
      if (x >= old.length && x - diagonal >= now.length) return wayBack(old, now, trace);
    }
  }
  return [...old.map((word) => ["removed", word]), ...now.map((word) => ["added", word])];
}

function isDown(reach, diagonal, changes) {
  return diagonal === -changes || (diagonal !== changes && reach.get(diagonal - 1) < reach.get(diagonal + 1));
}

function wayBack(old, now, trace) {
  let x = old.length;
  let y = now.length;
  const found = [];
  for (let changes = trace.length - 1; changes > 0; changes -= 1) {
    const reach = trace[changes];
    const diagonal = x - y;
    const down = isDown(reach, diagonal, changes);
    const from = diagonal + (down ? 1 : -1);
    const fromX = reach.get(from);
    const fromY = fromX - from;
    while (x > fromX && y > fromY) {
      x -= 1;
      y -= 1;
      found.push(["same", old[x]]);
    }
    found.push(down ? ["added", now[fromY]] : ["removed", old[fromX]]);
    x = fromX;
    y = fromY;
  }
  for (let at = x - 1; at >= 0; at -= 1) found.push(["same", old[at]]);
  return found.reverse();
}

// Whole pieces; a space alone between two changes belongs to both of them.
function joined(steps) {
  const pieces = [];
  let removed = "";
  let added = "";
  const close = () => {
    if (removed) pieces.push(["removed", removed]);
    if (added) pieces.push(["added", added]);
    removed = added = "";
  };
  steps.forEach(([change, word], number) => {
    if (change === "removed") removed += word;
    else if (change === "added") added += word;
    else if ((removed || added) && number + 1 < steps.length && steps[number + 1][0] !== "same" && BLANK.test(word)) {
      removed += word;
      added += word;
    } else {
      close();
      if (pieces.length && pieces[pieces.length - 1][0] === "same") pieces[pieces.length - 1][1] += word;
      else pieces.push(["same", word]);
    }
  });
  close();
  return pieces;
}
