// Breakpoints of playback. They use figures that the browser has for the whole run.

export const EVENT_BITS = ["preempt", "evict", "hit", "oom", "finish", "add", "abort", "resume"];

/** Why playback stops at a step: a list of words, empty if it does not.
 *  breaks: {kinds: Set of EVENT_BITS, freeBelow: number or null, steps: Set of steps or null}
 *  Lasting conditions (waiting for blocks, few free blocks) stop playback only in the step in which they begin. */
export function stopsAt(figures, breaks, step) {
  const found = [];
  const has = (kind, at) => at >= 0 && (figures.events[at] >> EVENT_BITS.indexOf(kind)) & 1;
  for (const kind of EVENT_BITS) {
    if (breaks.kinds.has(kind) && has(kind, step) && !(kind === "oom" && has(kind, step - 1))) found.push(kind);
  }
  const few = (at) => figures.free[at] < breaks.freeBelow;
  if (breaks.freeBelow !== null && few(step) && (step === 0 || !few(step - 1))) found.push(`free < ${breaks.freeBelow}`);
  if (breaks.steps?.has(step)) found.push("request");
  return found;
}

/** The next step in a direction (1 or -1) at which playback stops, or -1. */
export function nextStop(figures, breaks, from, direction, last) {
  for (let step = from + direction; step >= 0 && step <= last; step += direction) {
    if (stopsAt(figures, breaks, step).length) return step;
  }
  return -1;
}

/** The first stop between two steps, else the target. */
export function playTo(figures, breaks, from, to) {
  const stop = nextStop(figures, breaks, from, 1, to);
  return stop < 0 ? { step: to, stopped: false } : { step: stop, stopped: true };
}
