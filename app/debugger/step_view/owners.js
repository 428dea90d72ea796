// The requests that hold each block after a step, as looks: from the block tables of a chunk of details.

import { GREY } from "./theme.js";

export const MOST_OWNERS = 4;
/** Owners of a block that are drawn; the others are only named. */

const LOOKS_BY_CHUNK = new WeakMap();

/** A name with so many characters of its beginning and its end, where the ids of a server differ. */
export function shortened(name, kept) {
  const end = Math.floor(kept / 2);
  return `${name.slice(0, kept - end)}…${name.slice(-end)}`;
}

/** Request -> its look after a step. A name that is used again after its request ended has another look. */
export function looksOf(chunk, step) {
  const lanes = chunk.lanes ?? [];
  let found = LOOKS_BY_CHUNK.get(chunk);
  if (!found) LOOKS_BY_CHUNK.set(chunk, (found = new Map(lanes.map(([name, look]) => [name, look]))));
  if (found.size === lanes.length) return found;
  return new Map(lanes.filter(([, , spans]) => spans.length && spans[0][1] <= step).map(([name, look]) => [name, look]));
}

/** Request -> its adapter after a step, of those that have one. */
export function adaptersOf(chunk, step) {
  const known = (chunk.lanes ?? []).filter(([, , spans, adapter]) => adapter && spans.length && spans[0][1] <= step);
  return new Map(known.map(([name, , , adapter]) => [name, adapter]));
}

export class Owners {
  constructor(numBlocks) {
    this.counts = new Uint16Array(numBlocks);
    this.looks = new Uint16Array(numBlocks * MOST_OWNERS);
    this.first = new Int32Array(numBlocks);
  }

  /** Compute them for a step of the chunk. focus: a Set of the requests that keep their looks, or null for all.
   *
   *  counts: owners per block; looks: MOST_OWNERS per block; first: index into chunk.stays of the first owner. */
  look(chunk, step, focus) {
    this.counts.fill(0);
    this.chunk = chunk;
    const looks = looksOf(chunk, step);
    chunk.stays.forEach(([name, admitted, left, blocks, growth, behind], stay) => {
      if (admitted > step || (left !== null && step >= left)) return;
      const look = focus && !focus.has(name) ? GREY : (looks.get(name) ?? GREY);
      const length = lengthAt(growth, step);
      for (let place = goneAt(behind, step); place < length; place++) {
        const block = blocks[place], count = this.counts[block]++;
        if (count === 0) this.first[block] = stay;
        if (count < MOST_OWNERS) this.looks[block * MOST_OWNERS + count] = look;
      }
    });
    return this;
  }

  /** Name of a block's first owner; "" without one. */
  nameOf(block) {
    return this.counts[block] ? this.chunk.stays[this.first[block]][0] : "";
  }
}

/** Blocks that requests gave up in a step, by preemption or at their end -> the request's look. */
export function givenUp(chunk, step) {
  const found = new Map(), looks = looksOf(chunk, step);
  for (const [name, , left, blocks, growth, behind] of chunk.stays) {
    if (left !== step) continue;
    const end = lengthAt(growth, step - 1);
    for (let place = goneAt(behind, step - 1); place < end; place++) if (blocks[place]) found.set(blocks[place], looks.get(name) ?? GREY);
  }
  return found;
}

/** Length of a block table after a step. growth: [[step, length from then on], ...] */
export function lengthAt(growth, step) {
  let length = 0;
  for (const [when, count] of growth) {
    if (when > step) break;
    length = count;
  }
  return length;
}

/** Leading entries of a table that lie behind a sliding window. */
export function goneAt(behind, step) {
  let gone = 0;
  for (const [when, count] of behind) if (when <= step && count > gone) gone = count;
  return gone;
}

/** A request and those that share a block with it. */
export function neighbours(tables, request) {
  const own = new Set(tables.get(request) ?? []);
  const found = new Set([request]);
  for (const [name, table] of tables) if (table.some((block) => block && own.has(block))) found.add(name);
  return found;
}
