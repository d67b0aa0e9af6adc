// What the timeline shows: the preparation, the zygote and each rank, out of status and events.
import { bytes, num, percent, seconds, whole } from "./format.js";

const STATES = { spawn: "not there yet", waiting: "waits at the gate", importing: "imports", loading: "loads", ready: "waits for the others", training: "trains", done: "done", failed: "failed" };

// events: those of preparation and zygote, as spans [{phase, start_t, end_t}] of one attempt;
// prepared: how far the data are, {num_rows, done_bytes, total_bytes, pss_bytes}, null where not known.
export function startup(status, events, prepared, now) {
  const isLive = status.state === "running" && ["preparing", "starting", "training"].includes(status.phase);
  const ranks = (status.ranks || []).map((rank) => ({
    name: `Rank ${rank.rank}`,
    spans: (rank.timeline || []).filter((span) => num(span.start_t) !== null).map((span) => ({ phase: span.phase, start_t: span.start_t, end_t: span.end_t ?? null })),
    ...memory(rank, status),
    state: STATES[rank.phase] || rank.phase,
  }));
  const memoryOf = (row) => (row.name === "Prepare" && prepared.pss_bytes !== null ? prepared.pss_bytes : row.memory_bytes);
  const rows = [...events.map((one) => ({ ...one, memory_bytes: memoryOf(one), limit_bytes: one.limit_bytes ?? null })), ...ranks].filter((row) => row.spans.length || row.state);
  const starts = rows.flatMap((row) => row.spans.map((span) => span.start_t));
  return { rows, began_t: starts.length ? Math.min(...starts) : status.started_t || now, now, isLive, memoryTitle: ranks.some((rank) => rank.onGpu) ? "GPU memory" : "Memory, of its share of the host", said: [isLive ? preparation(status, prepared) : "", said(status, rows, ranks)].filter(Boolean).join(" ") };
}

// On a GPU, its memory of what it has; else the rank's own of its share of the host.
function memory(rank, status) {
  if (num(rank.gpu_used_bytes) && num(rank.limit_bytes)) return { memory_bytes: rank.gpu_used_bytes, limit_bytes: rank.limit_bytes, onGpu: true };
  const host = (status.plan && status.plan.host) || {};
  const all_bytes = num(host.available_bytes);
  return { memory_bytes: rank.pss_anon_bytes ?? rank.rss_bytes ?? null, limit_bytes: all_bytes ? all_bytes / Math.max(1, status.ranks.length) : null };
}

// What is known of the data while they are read and tokenised.
function preparation(status, { num_rows: rows, done_bytes: done, total_bytes: total, pss_bytes: memory }) {
  if (status.phase !== "preparing" || rows === null || !total) return "";
  return `Data: ${whole(rows)} rows, ${percent(Math.min(1, done / total), 0)} of ${bytes(total)}, with ${bytes(memory)} of memory.`;
}

function said(status, rows, ranks) {
  if (!rows.length) return status.state === "running" ? "Nothing has been started yet." : "The run ended before any rank was started.";
  const spans = rows.flatMap((row) => row.spans);
  const through = ranks.filter((rank) => rank.spans.some((span) => ["process_group", "ddp"].includes(span.phase) && span.end_t));
  const waiting = ranks.filter((rank) => rank.spans.length && rank.spans[rank.spans.length - 1].phase === "waiting" && !rank.spans[rank.spans.length - 1].end_t);
  const all = ranks.length;
  const most = Math.max(0, ...ranks.map((rank) => rank.memory_bytes || 0));
  if (all && through.length === all) {
    const from = Math.min(...spans.map((span) => span.start_t));
    const to = Math.max(...ranks.flatMap((rank) => rank.spans.map((span) => span.end_t || 0)));
    return `All ${all} ${all === 1 ? "rank is" : "ranks are"} through after ${seconds(to - from)}; the largest holds ${bytes(most || null)}.`;
  }
  return `${through.length} of ${all} ranks are through${waiting.length ? `; ${waiting.length} ${waiting.length === 1 ? "waits" : "wait"} at the gate` : ""}.`;
}
