// The state after one step, from a chunk of details (`details.py`), and as text.

import { CACHED, FREE, SHARED, USED, countStates } from "./frames.js";
import { adaptersOf, looksOf, goneAt, lengthAt } from "./owners.js";

/** -> {step, rows, idle, running, queue, waiting, reasons, tables, ...}; null if the chunk does not contain the step. */
export function stepState(chunk, step) {
  if (!chunk || step < chunk.first || step >= chunk.last) return null;
  const entry = chunk.steps[step - chunk.first];
  const tables = new Map();
  for (const stay of chunk.stays) {
    const [name, admitted, left] = stay;
    if (admitted <= step && (left === null || step < left)) tables.set(name, tableAt(stay, step));
  }
  const rows = (entry.rows ?? []).map(([request, phase, tokens, start, computed, total, outputs, made]) => ({
    request, phase, tokens, start, computed, total, outputs, made, blocks: tables.get(request)?.length ?? 0,
    runs: tables.has(request), text: inWords(made, chunk.text),
  }));
  const idle = (entry.idle ?? []).map(([request, computed, total]) => ({
    request, computed, total, blocks: tables.get(request)?.length ?? 0,
  }));
  return {
    step, rows, idle, tables,
    looks: looksOf(chunk, step),
    adapters: adaptersOf(chunk, step),
    running: entry.order ?? [],
    queue: entry.queue ?? [],
    waiting: entry.waiting ?? 0,
    why: entry.why ?? [],
    admitted: entry.hits ?? [],
    resumed: entry.resumed ?? [],
    preempted: entry.preempted ?? [],
    finished: entry.finished ?? [],
    added: entry.added ?? [],
    aborted: entry.aborted ?? [],
    copyOut: entry.out ?? [],
    copyIn: entry.in ?? [],
    sentence: entry.sentence ?? "",
    soFar: entry.so_far ?? entry.sentence ?? "",
    source: entry.source ?? null,
    time: entry.time, seconds: entry.seconds,
    tokens: rows.reduce((sum, row) => sum + row.tokens, 0),
  };
}

/** Tokens as text, or their ids without the model's tokenizer. */
function inWords(tokens, text) {
  const known = text && tokens.every((token) => token in text);
  return known ? tokens.map((token) => text[token]).join("") : tokens.join(" ");
}

/** The tokens in a block after the step, as text: "" if it is free or its content is unknown. */
export function textIn(chunk, state, states, block, size) {
  const place = states[block] === FREE ? null : lastPlace(chunk?.places?.[block], state.step);
  if (!place || place[1] === null) return "";
  const [, name, number, index] = place;
  const row = state.tables.get(name)?.[index] === block ? [...state.rows, ...state.idle].find((each) => each.request === name) : null;
  const end = Math.min((index + 1) * size, row ? row.computed : Infinity);
  const tokens = chunk.tokens[number].slice(index * size, end);
  const known = tokens.every((token) => token in chunk.text);
  return known ? tokens.map((token) => chunk.text[token]).join("") : tokens.join(" ");
}

function lastPlace(places = [], step) {
  return places.filter(([when]) => when <= step).at(-1) ?? null;
}

/** Block ids in table order; those behind a sliding window are the null block. */
function tableAt([, , , blocks, growth, behind], step) {
  const length = lengthAt(growth, step), gone = goneAt(behind, step);
  const table = blocks.slice(0, length);
  return gone ? table.fill(0, 0, Math.min(gone, length)) : table;
}

/** The requests that hold a block, most important first. */
export function ownersOf(state, block) {
  if (!block) return [];
  return state.running.filter((name) => state.tables.get(name)?.includes(block));
}

/** [[adapter, requests that use its slot], ...] of the running requests. */
export function slotUsers(state) {
  const users = new Map();
  for (const name of state.running) {
    const adapter = state.adapters.get(name);
    if (adapter) users.set(adapter, [...(users.get(adapter) ?? []), name]);
  }
  return [...users];
}

/** [reason, figures] for a request that computed nothing; null if it arrived during the step. */
export function reasonOf(state, request) {
  const own = state.why.find(([name]) => name === request) ?? state.why.find(([name]) => name === null);
  return own ? [own[1], own[2]] : null;
}

/** [[3, 5], [9, 9]] -> "3-5 9": block ids as ranges. */
export function ranges(ids) {
  const found = [];
  for (const id of ids) {
    const tail = found.at(-1);
    if (tail && id === tail[1] + 1) tail[1] = id;
    else found.push([id, id]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(" ");
}

/** Lines for screen readers, for copying, and for the tests that compare the state with the engine. */
export function stateText(figures, states, state, step) {
  const counts = countStates(states);
  const usable = states.length - 1;
  const lines = [
    `step ${step}`,
    `blocks ${usable}: used ${counts[USED] + counts[SHARED]}, of these shared ${counts[SHARED]}; ` +
      `free ${figures.free[step]}, of these cached ${counts[CACHED]}`,
    `running ${figures.running[step]}, waiting ${figures.waiting[step]}, tokens ${figures.tokens[step]}`,
    `shared blocks: ${ranges(idsIn(states, SHARED)) || "none"}`,
    `used blocks: ${ranges(idsIn(states, USED)) || "none"}`,
    `cached blocks: ${ranges(idsIn(states, CACHED)) || "none"}`,
  ];
  if (!state) return lines.join("\n");
  const rows = new Map([...state.rows, ...state.idle].map((row) => [row.request, row]));
  for (const name of state.running) {
    const row = rows.get(name);
    const share = row?.tokens === undefined ? `not scheduled, ${reasonText(state, name)}` : `${row.phase} ${row.tokens}`;
    lines.push(`running ${name}: ${share}; computed ${row?.computed}/${row?.total}; table ${state.tables.get(name).join(" ")}`);
  }
  for (const [adapter, names] of slotUsers(state)) lines.push(`adapter ${adapter}: slot used by ${names.join(" ")}`);
  for (const name of state.queue) lines.push(`waiting ${name}: ${reasonText(state, name)}`);
  for (const { request } of state.preempted) lines.push(`preempted ${request}`);
  for (const [name, reason] of state.finished) lines.push(`finished ${name}: ${reason}`);
  for (const name of state.aborted) lines.push(`aborted ${name}`);
  return lines.join("\n");
}

/** "no_blocks need 3, free then 1" */
export function reasonText(state, request) {
  const reason = reasonOf(state, request);
  if (!reason) return "arrived during the step";
  return [reason[0], figuresText(reason)].filter(Boolean).join(" ");
}

/** The numbers of a decision, [reason, figures]. The map shows the blocks after the step; the decision saw those before
 *  it, and of the lower priority, what the more important request needed. */
export function figuresText([reason, figures]) {
  const words = { free: "free then", need: reason === "lower_priority" ? "another needed" : "need" };
  return Object.entries(figures).map(([name, value]) => `${words[name] ?? name} ${value}`).join(", ");
}

function idsIn(states, wanted) {
  const found = [];
  for (let block = 1; block < states.length; block++) if (states[block] === wanted) found.push(block);
  return found;
}
