// The parts of a run that the browser has, and those it must request. `envelope.py` defines their layout.

import { Frames, joined } from "./frames.js";

const FIGURES = ["events", "tokens", "running", "waiting", "free", "hashed", "kv"];
const MOST_WINDOWS = 3, MOST_CHUNKS = 40;
const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, i8: BigInt64Array, f8: Float64Array };
const ALIGN = 8;

/** -> {head, parts: Map of key -> compressed bytes} */
export function openEnvelope(bytes) {
  const { head, position } = readHead(bytes);
  const parts = new Map();
  let start = position;
  for (const { key, length } of head.parts) {
    parts.set(key, bytes.subarray(start, start + length));
    start += length;
  }
  return { head, parts };
}

/** -> {meta, arrays: {name: typed array}} */
export async function unpackPart(part) {
  const stream = new Blob([part]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const { head, position } = readHead(bytes);
  const arrays = {};
  let start = position;
  for (const [name, type, count] of head.arrays) {
    start += (ALIGN - (start % ALIGN)) % ALIGN;
    arrays[name] = new TYPES[type](bytes.buffer, start, count);
    start += arrays[name].byteLength;
  }
  return { meta: head, arrays };
}

function readHead(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const text = new TextDecoder().decode(bytes.subarray(4, 4 + length));
  return { head: JSON.parse(text), position: 4 + length };
}

export class Store {
  constructor(run) {
    this.run = run;
    this.figures = null;
    this.windows = new Map();
    this.chunks = new Map();
    this.blocks = new Map();
    this.requests = new Map();
    this.answers = new Map();
  }

  /** head: facts about the run in every message from Python. */
  describe(head) {
    this.windowSteps = head.window;
    this.chunkSteps = head.chunk;
    this.numSteps = head.num_steps;
  }

  get ready() {
    return this.figures !== null && this.figures.length > 0;
  }

  async take(key, part) {
    const { meta, arrays } = await unpackPart(part);
    const kind = key[0];
    if (kind === "o") this.takeFigures(meta, arrays);
    else if (kind === "w") this.takeWindow(meta, arrays);
    else if (kind === "d") keep(this.chunks, key, meta, MOST_CHUNKS);
    else if (kind === "b") keep(this.blocks, key, meta, MOST_CHUNKS);
    else if (kind === "r") this.requests.set(key, meta);
    else if (kind === "y") keep(this.answers, key, meta, MOST_CHUNKS);
  }

  takeFigures(meta, arrays) {
    if (meta.first === 0) this.figures = { ...arrays, length: meta.last };
    else if (this.ready && meta.first <= this.figures.length && meta.last > this.figures.length) {
      const known = this.figures.length - meta.first;
      for (const name of FIGURES) this.figures[name] = joined(this.figures[name], arrays[name].subarray(known));
      this.figures.length = meta.last;
    }
  }

  takeWindow(meta, arrays) {
    const key = this.windowKey(meta.first);
    const known = this.windows.get(key);
    if (meta.grows) known?.append(meta, arrays);
    else if (!known || known.last < meta.last) keep(this.windows, key, new Frames(meta, arrays), MOST_WINDOWS);
  }

  windowKey(step) {
    return `w:${Math.floor(step / this.windowSteps) * this.windowSteps}`;
  }

  chunkKey(step) {
    return `d:${Math.floor(step / this.chunkSteps) * this.chunkSteps}`;
  }

  frames(step) {
    const found = this.windows.get(this.windowKey(step));
    return found?.has(step) ? found : null;
  }

  chunk(step) {
    const found = this.chunks.get(this.chunkKey(step));
    return found && step < found.last ? found : null;
  }

  blockFacts(block, step) {
    return this.blocks.get(this.blockKey(block, step)) ?? null;
  }

  blockKey(block, step) {
    return `b:${block}:${this.windowKey(step).slice(2)}`;
  }

  /** Keys of the parts to request next for a complete view of a step; `ahead`: steps to come. The map comes alone,
   *  before what takes longer to make. */
  missing(step, ahead, block, request) {
    const wanted = [];
    if (!this.ready || this.figures.length < this.numSteps) wanted.push("o");  // a live run's growth can be lost
    if (!this.frames(step)) wanted.push(this.windowKey(step));
    if (wanted.length) return wanted;
    if (!this.chunk(step)) wanted.push(this.chunkKey(step));
    if (block !== null && !this.blockFacts(block, step)) wanted.push(this.blockKey(block, step));
    if (request !== null && !this.requests.has(`r:${request}`)) wanted.push(`r:${request}`);
    const last = this.ready ? Math.min(step + ahead, this.figures.length - 1) : step;
    if (ahead && last > step) {
      if (!this.chunk(last)) wanted.push(this.chunkKey(last));
      if (!this.frames(last)) wanted.push(this.windowKey(last));
    }
    return [...new Set(wanted)];
  }
}

function keep(map, key, value, most) {
  map.delete(key);
  map.set(key, value);
  if (map.size > most) map.delete(map.keys().next().value);
}
