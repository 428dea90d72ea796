// The state of every block after any step of a window, from a base and the changes since.

export const FREE = 0, CACHED = 1, USED = 2, SHARED = 3;
export const KEYFRAME_STEPS = 64;

export class Frames {
  /** meta: {first, last, num_blocks}; base: states before step `first`. */
  constructor(meta, { base, offsets, block, state }) {
    this.first = meta.first;
    this.last = meta.last;
    this.numBlocks = meta.num_blocks;
    this.offsets = offsets;
    this.block = block;
    this.state = state;
    this.keyframes = [];
    this.now = base.slice();
    this.step = this.first - 1;
    this.makeKeyframes();
  }

  /** States after a step, by block id. The array is reused: read it before the next call. */
  at(step) {
    const ahead = step - this.step;
    if (ahead < 0 || ahead > KEYFRAME_STEPS) {
      const frame = Math.floor((step + 1 - this.first) / KEYFRAME_STEPS);
      this.now.set(this.keyframes[frame]);
      this.step = this.first + frame * KEYFRAME_STEPS - 1;
    }
    while (this.step < step) this.play(this.now, ++this.step);
    return this.now;
  }

  /** Block ids that changed in a step. */
  changed(step) {
    const at = step - this.first;
    return this.block.subarray(this.offsets[at], this.offsets[at + 1]);
  }

  has(step) {
    return this.first <= step && step < this.last;
  }

  /** Append the changes of steps this.last .. meta.last - 1 of a live run; earlier ones are skipped. */
  append(meta, { offsets, block, state }) {
    const known = this.last - meta.first;
    if (known < 0 || meta.last <= this.last) return false;
    const skipped = offsets[known], held = this.offsets[this.last - this.first];
    this.block = joined(this.block, block.subarray(skipped));
    this.state = joined(this.state, state.subarray(skipped));
    const more = offsets.subarray(known + 1).map((offset) => offset - skipped + held);
    this.offsets = joined(this.offsets, more);
    this.last = meta.last;
    this.makeKeyframes();
    return true;
  }

  /** Keyframe k is the state before step first + k * KEYFRAME_STEPS. Leaves `now` at the last of them. */
  makeKeyframes() {
    const wanted = Math.floor((this.last - this.first) / KEYFRAME_STEPS) + 1;
    if (this.keyframes.length) {
      this.now.set(this.keyframes.at(-1));
      this.step = this.first + (this.keyframes.length - 1) * KEYFRAME_STEPS - 1;
    }
    while (this.keyframes.length < wanted) {
      const before = this.first + this.keyframes.length * KEYFRAME_STEPS - 1;
      while (this.step < before) this.play(this.now, ++this.step);
      this.keyframes.push(this.now.slice());
    }
  }

  play(states, step) {
    const at = step - this.first, end = this.offsets[at + 1];
    for (let i = this.offsets[at]; i < end; i++) states[this.block[i]] = this.state[i];
  }
}

/** Number of blocks in each state, without the null block 0. */
export function countStates(states) {
  const counts = [0, 0, 0, 0];
  for (let block = 1; block < states.length; block++) counts[states[block]]++;
  return counts;
}

export function joined(a, b) {
  const both = new a.constructor(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
