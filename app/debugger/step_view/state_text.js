// The state after a step as lines of text: for screen readers, for copying, and for the tests that compare it
// with the engine.

import { CACHED, SHARED, USED, countStates } from "./frames.js";
import { ranges, reasonOf } from "./step_state.js";

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
  for (const name of state.queue) lines.push(`waiting ${name}: ${reasonText(state, name)}`);
  for (const { request } of state.preempted) lines.push(`preempted ${request}`);
  for (const [name, reason] of state.finished) lines.push(`finished ${name}: ${reason}`);
  for (const name of state.aborted) lines.push(`aborted ${name}`);
  return lines.join("\n");
}

/** "no_blocks need 3, free 1" */
export function reasonText(state, request) {
  const reason = reasonOf(state, request);
  if (!reason) return "arrived during the step";
  return [reason[0], figuresText(reason[1])].filter(Boolean).join(" ");
}

export function figuresText(figures) {
  return Object.entries(figures).map(([name, value]) => `${name} ${value}`).join(", ");
}

function idsIn(states, wanted) {
  const found = [];
  for (let block = 1; block < states.length; block++) if (states[block] === wanted) found.push(block);
  return found;
}
