// The parts of the page Step that need no browser. Run by tests/app/debugger/test_step_scripts.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { EVENT_BITS, nextStop, playTo, stopsAt } from "../../../../app/debugger/step_view/breaks.js";
import { Frames, countStates } from "../../../../app/debugger/step_view/frames.js";
import { blockAt, cornerOf, gridFor, linesOf, moved } from "../../../../app/debugger/step_view/block_map.js";
import { commandOf } from "../../../../app/debugger/step_view/keys.js";
import { ownersOf, ranges, reasonOf, stepState, textIn, slotUsers } from "../../../../app/debugger/step_view/step_state.js";
import { colourOf, GREY, markOf, NUM_COLOURS } from "../../../../app/debugger/step_view/theme.js";
import { givenUp, MOST_OWNERS, neighbours, Owners, shortened } from "../../../../app/debugger/step_view/owners.js";
import { lanesAt } from "../../../../app/debugger/step_view/lanes.js";
import { openEnvelope, Store, unpackPart } from "../../../../app/debugger/step_view/store.js";
import { anyEvents, columnSteps, minMax, stepAtFraction, strideFor } from "../../../../app/debugger/step_view/timeline.js";

/** The same numbers for the same seed. */
function dice(seed) {
  return (sides) => {
    seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
    return Math.floor((seed / 0x80000000) * sides);
  };
}

/** A random run, state by state, and as changes. */
function randomRun(seed, numBlocks, numSteps, first = 0) {
  const roll = dice(seed);
  const base = Uint8Array.from({ length: numBlocks }, () => roll(4));
  const states = [], block = [], state = [], offsets = [0];
  const now = base.slice();
  for (let step = 0; step < numSteps; step++) {
    const changed = new Set(Array.from({ length: roll(6) }, () => roll(numBlocks)));
    for (const each of changed) {
      now[each] = roll(4);
      block.push(each);
      state.push(now[each]);
    }
    offsets.push(block.length);
    states.push(now.slice());
  }
  const arrays = { base, offsets: Uint32Array.from(offsets), block: Uint32Array.from(block), state: Uint8Array.from(state) };
  return { states, meta: { first, last: first + numSteps, num_blocks: numBlocks }, arrays };
}

test("every step of a window is found, in whatever order it is asked for", () => {
  for (let seed = 1; seed <= 20; seed++) {
    const roll = dice(seed + 100), first = roll(500);
    const { states, meta, arrays } = randomRun(seed, 1 + roll(50), 1 + roll(300), first);
    const frames = new Frames(meta, arrays);
    for (let i = 0; i < 300; i++) {
      const step = first + roll(states.length);
      assert.deepEqual(frames.at(step), states[step - first], `seed ${seed}, step ${step}`);
    }
    for (let step = first; step < first + states.length; step++) assert.deepEqual(frames.at(step), states[step - first]);
  }
});

test("a window that grows in pieces of any size, some sent twice, is the window that came whole", () => {
  for (let seed = 1; seed <= 20; seed++) {
    const roll = dice(seed + 7);
    const { states, meta, arrays } = randomRun(seed, 20, 200);
    const piece = (from, to) => {
      const [start, end] = [arrays.offsets[from], arrays.offsets[to]];
      const base = from ? states[from - 1] : arrays.base;
      return [
        { ...meta, first: from, last: to },
        { base, offsets: arrays.offsets.slice(from, to + 1).map((at) => at - start), block: arrays.block.slice(start, end), state: arrays.state.slice(start, end) },
      ];
    };
    const grown = new Frames(...piece(0, 1 + roll(90)));
    while (grown.last < 200) {
      grown.append(...piece(Math.max(0, grown.last - roll(5)), Math.min(200, grown.last + 1 + roll(80))));
      assert.deepEqual(grown.at(grown.last - 1), states[grown.last - 1]);
    }
    for (let i = 0; i < 100; i++) {
      const step = roll(200);
      assert.deepEqual(grown.at(step), states[step]);
    }
  }
});

test("a piece that leaves a gap is refused", () => {
  const { meta, arrays } = randomRun(3, 8, 10);
  const frames = new Frames(meta, arrays);
  assert.equal(frames.append({ ...meta, first: 12, last: 20 }, arrays), false);
  assert.equal(frames.last, 10);
});

test("block 0 is not counted: it is never handed out", () => {
  assert.deepEqual(countStates(Uint8Array.of(0, 0, 1, 2, 2, 3)), [1, 1, 2, 1]);
});

function figuresOf(kinds, free = kinds.map(() => 9)) {
  const events = kinds.map((names) => names.reduce((bits, name) => bits | (1 << EVENT_BITS.indexOf(name)), 0));
  return { events: Uint8Array.from(events), free: Int32Array.from(free), length: kinds.length };
}
const breaksOn = (kinds, more = {}) => ({ kinds: new Set(kinds), freeBelow: null, steps: null, ...more });

test("the next breakpoint is the nearest step with an event that is switched on", () => {
  const figures = figuresOf([[], ["evict"], [], ["preempt", "evict"], [], ["preempt"]]);
  assert.equal(nextStop(figures, breaksOn(["preempt"]), 0, 1, 5), 3);
  assert.equal(nextStop(figures, breaksOn(["preempt"]), 3, 1, 5), 5);
  assert.equal(nextStop(figures, breaksOn(["preempt"]), 5, 1, 5), -1);
  assert.equal(nextStop(figures, breaksOn(["preempt", "evict"]), 3, -1, 5), 1);
  assert.equal(nextStop(figures, breaksOn([]), 0, 1, 5), -1);
  assert.deepEqual(stopsAt(figures, breaksOn(["preempt", "evict"]), 3), ["preempt", "evict"]);
});

test("what lasts stops in the step in which it begins", () => {
  const oom = figuresOf([["oom"], ["oom"], [], ["oom"], ["oom"]]);
  assert.deepEqual([0, 1, 2, 3, 4].filter((step) => stopsAt(oom, breaksOn(["oom"]), step).length), [0, 3]);
  const few = figuresOf([[], [], [], [], []], [5, 2, 1, 5, 2]);
  const below = breaksOn([], { freeBelow: 3 });
  assert.deepEqual([0, 1, 2, 3, 4].filter((step) => stopsAt(few, below, step).length), [1, 4]);
});

test("playing past a breakpoint stops on it, and a request's own steps are breakpoints too", () => {
  const figures = figuresOf([[], [], ["preempt"], [], []]);
  assert.deepEqual(playTo(figures, breaksOn(["preempt"]), 0, 4), { step: 2, stopped: true });
  assert.deepEqual(playTo(figures, breaksOn(["preempt"]), 2, 4), { step: 4, stopped: false });
  assert.deepEqual(playTo(figures, breaksOn([], { steps: new Set([1]) }), 0, 4), { step: 1, stopped: true });
});

test("columns cover every step, and none is lost or empty", () => {
  const roll = dice(5);
  for (let i = 0; i < 200; i++) {
    const first = roll(50), last = first + 1 + roll(400), columns = 1 + roll(120);
    const seen = new Set();
    for (let column = 0; column < columns; column++) {
      const [from, to] = columnSteps(column, first, last, columns);
      assert.ok(first <= from && from < to && to <= last);
      for (let step = from; step < to; step++) seen.add(step);
    }
    assert.equal(seen.size, last - first);
    assert.equal(stepAtFraction(-0.1, first, last), first);
    assert.equal(stepAtFraction(1, first, last), last - 1);
  }
});

test("a spike of one step among thousands is seen", () => {
  const values = new Int32Array(5000).fill(3);
  values[4321] = 77;
  const { low, high } = minMax(values, 0, 5000, 100);
  assert.equal(Math.max(...high), 77);
  assert.equal(Math.min(...low), 3);
  const events = new Uint8Array(5000);
  events[4321] = 2;
  assert.deepEqual([...anyEvents(events, 0, 5000, 100)].filter(Boolean), [2]);
});

test("a block lies where a click finds it, on maps of any size", () => {
  for (const [numBlocks, width] of [[1, 300], [40, 700], [4096, 700], [10_001, 700], [100_001, 700], [10_001, 320]]) {
    const grid = gridFor(numBlocks, width, 520);
    assert.ok(grid.columns * grid.cell <= width || grid.cell === 1);
    assert.ok(grid.columns * grid.rows >= numBlocks);
    for (const block of [0, Math.floor(numBlocks / 2), numBlocks - 1]) {
      const [x, y] = cornerOf(grid, block);
      assert.equal(blockAt(grid, numBlocks, x + grid.cell / 2, y + grid.cell / 2), block);
    }
    assert.equal(blockAt(grid, numBlocks, -1, 0), null);
    assert.equal(blockAt(grid, numBlocks, 0, 1e6), null);
    assert.equal(moved(grid, numBlocks, 0, -1, 0), 0);
    assert.equal(moved(grid, numBlocks, numBlocks - 1, 0, 1), numBlocks - 1);
  }
});

const key = (name, more = {}) => ({ key: name, ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...more });
const element = (tagName, more = {}) => ({ tagName, getAttribute: () => null, ...more });

test("keys mean commands, except where somebody types or a button has them", () => {
  const body = element("BODY");
  assert.deepEqual(commandOf(key("b"), body), ["break", 1]);
  assert.deepEqual(commandOf(key("B", { shiftKey: true }), body), ["break", -1]);
  assert.deepEqual(commandOf(key("}", { shiftKey: true }), body), ["step", 10]);
  assert.deepEqual(commandOf(key("["), body), ["step", -1]);
  assert.deepEqual(commandOf(key("]", { shiftKey: true }), body), ["step", 10]);
  assert.deepEqual(commandOf(key("ArrowDown", { shiftKey: true }), body), ["cursor", 0, 1]);
  assert.deepEqual(commandOf(key("ArrowRight"), body), ["step", 1]);
  assert.equal(commandOf(key("ArrowDown"), body), null, "it scrolls the page");
  assert.equal(commandOf(key("b", { ctrlKey: true }), body), null);
  assert.equal(commandOf(key("b"), element("INPUT", { type: "text" })), null);
  assert.equal(commandOf(key("b"), element("TEXTAREA")), null);
  assert.deepEqual(commandOf(key("b"), element("INPUT", { type: "checkbox" })), ["break", 1]);
  assert.equal(commandOf(key(" "), element("BUTTON")), null);
  assert.deepEqual(commandOf(key(" "), body), ["play"]);
  assert.equal(commandOf(key("x"), body), null);
});

const CHUNK = {
  first: 10,
  last: 13,
  steps: [
    { rows: [["a", "prefill", 8, 0, 8, 8, 1, [5]]], order: ["a"], queue: ["b"], waiting: 1, why: [["b", "no_blocks", { need: 3, free: 1 }]] },
    { rows: [["a", "decode", 1, 8, 9, 9, 2, [6]]], order: ["a", "b"], idle: [["b", 4, 9]], why: [[null, "budget_exhausted", {}]] },
    { order: ["b"], idle: [["b", 4, 9]] },
  ],
  stays: [
    ["a", 9, 12, [4, 5, 6], [[9, 1], [10, 2], [11, 3]], [[11, 1]]],
    ["b", 11, null, [5, 9], [[11, 2]], []],
  ],
};

test("new tokens read as text where all of them are known, else as ids", () => {
  const text = (known) => stepState({ ...CHUNK, text: known }, 10).rows.map((row) => row.text);
  assert.deepEqual(text({ 5: "·yen" }), ["·yen"]);
  assert.deepEqual(text({ 6: "·yen" }), ["5"]);
  assert.deepEqual(text(undefined), ["5"]);
});

test("tables grow, slide and end with their request", () => {
  assert.deepEqual(stepState(CHUNK, 10).tables, new Map([["a", [4, 5]]]));
  assert.deepEqual(stepState(CHUNK, 11).tables, new Map([["a", [0, 5, 6]], ["b", [5, 9]]]));
  assert.deepEqual(stepState(CHUNK, 12).tables, new Map([["b", [5, 9]]]));
  assert.equal(stepState(CHUNK, 13), null);
  assert.equal(stepState(CHUNK, 9), null);
  assert.deepEqual(ownersOf(stepState(CHUNK, 11), 5), ["a", "b"]);
  assert.deepEqual(ownersOf(stepState(CHUNK, 11), 0), []);
});

test("a request's reason is its own, else that of all the rest, else it came too late", () => {
  assert.deepEqual(reasonOf(stepState(CHUNK, 10), "b"), ["no_blocks", { need: 3, free: 1 }]);
  assert.deepEqual(reasonOf(stepState(CHUNK, 11), "z"), ["budget_exhausted", {}]);
  assert.equal(reasonOf(stepState(CHUNK, 12), "z"), null);
});

test("the owners of each block are those whose tables hold it, in every step", () => {
  const roll = dice(11);
  for (let i = 0; i < 50; i++) {
    const stays = [], lanes = [];
    for (let n = 0; n < 6; n++) {
      const blocks = Array.from({ length: 5 }, () => 1 + roll(20)).filter((block, at, all) => all.indexOf(block) === at);
      const admitted = roll(8);
      stays.push([`r${n}`, admitted, roll(2) ? null : admitted + 1 + roll(5), blocks, [[admitted, 1], [admitted + 2, blocks.length]], roll(3) ? [] : [[admitted + 3, 1]]]);
      lanes.push([`r${n}`, n % NUM_COLOURS, []]);
    }
    const chunk = { first: 0, last: 12, steps: Array.from({ length: 12 }, () => ({ order: stays.map(([name]) => name) })), stays, lanes };
    const owners = new Owners(21);
    for (let step = 0; step < 12; step++) {
      const state = stepState(chunk, step);
      owners.look(chunk, step, null);
      for (let block = 1; block < 21; block++) {
        const names = ownersOf(state, block).filter((name) => state.tables.has(name));
        assert.equal(owners.counts[block], names.length);
        const looks = [...owners.looks.slice(block * MOST_OWNERS, block * MOST_OWNERS + Math.min(names.length, MOST_OWNERS))];
        assert.deepEqual(looks.sort(), names.slice(0, MOST_OWNERS).map((name) => Number(name[1])).sort());
        assert.equal(names.includes(owners.nameOf(block)), names.length > 0);
      }
      const past = step ? stepState(chunk, step - 1).tables : new Map();
      const left = [...past].filter(([name]) => !state.tables.has(name)), given = givenUp(chunk, step);
      assert.deepEqual(new Set(given.keys()), new Set(left.flatMap(([, table]) => table.filter(Boolean))));
      for (const [block, look] of given) assert.ok(left.some(([name, table]) => table.includes(block) && Number(name[1]) === look));
    }
  }
});

test("out of focus a request is grey; its neighbours share a block with it", () => {
  const state = stepState({ ...CHUNK, lanes: [["a", 2, []], ["b", 3, []]] }, 11);
  assert.deepEqual(neighbours(state.tables, "a"), new Set(["a", "b"]));
  assert.deepEqual(neighbours(new Map([["a", [1, 0]], ["b", [0, 2]]]), "a"), new Set(["a"]), "the null block is nobody's");
  const owners = new Owners(10).look({ ...CHUNK, lanes: [["a", 2, []], ["b", 3, []]] }, 11, new Set(["b"]));
  assert.deepEqual([...owners.looks.slice(5 * MOST_OWNERS, 5 * MOST_OWNERS + 2)], [GREY, 3]);
});

test("a look is a colour, and a number from the second request of a colour on", () => {
  assert.deepEqual([0, 6, 7, 13, 14].map((look) => [colourOf(look), markOf(look)]), [[0, ""], [6, ""], [0, "2"], [6, "2"], [0, "3"]]);
  assert.deepEqual([colourOf(GREY), markOf(GREY)], [NUM_COLOURS, ""]);
  const crowded = { ...CHUNK, lanes: [["a", 300, [[2, 0, 30]]], ["b", 3, [[2, 0, 30]]]] };
  const owners = new Owners(10).look(crowded, 11, null), look = owners.looks[5 * MOST_OWNERS];
  assert.deepEqual([look, markOf(look)], [300, "43"], "more requests than a byte counts");
});

test("a slot of an adapter is used by the running requests that have it", () => {
  const lanes = [["a", 0, [[2, 10, 30]], "ja"], ["b", 1, [[2, 10, 30]], "ja"], ["w", 2, [[0, 11, 30]], "support"], ["later", 3, [[0, 12, 30]], "ja"]];
  const state = { ...stepState({ ...CHUNK, lanes }, 11), running: ["a", "b", "base"] };
  assert.deepEqual([...state.adapters], [["a", "ja"], ["b", "ja"], ["w", "support"]]);
  assert.deepEqual(slotUsers(state), [["ja", ["a", "b"]]]);
});

test("of many lanes those are drawn that live at the step, and the selected one", () => {
  const lanes = Array.from({ length: 40 }, (_, n) => [`r${n}`, n % NUM_COLOURS, [[0, n, n + 20]]]);
  assert.equal(lanesAt({ lanes: lanes.slice(0, 5) }, 0, null).length, 5);
  const shown = lanesAt({ lanes }, 20, "r20", false, 8);
  assert.equal(shown.length, 8);
  assert.ok(shown.every(([, , [[, first, last]]]) => first <= 20 && 20 <= last) && shown.some(([name]) => name === "r20"));
  assert.deepEqual(lanesAt(null, 0, null), []);
  const known = lanesAt({ lanes: lanes.slice(0, 10) }, 4, null, true);
  assert.deepEqual(known.map(([name]) => name), ["r0", "r1", "r2", "r3", "r4"], "while a question is open, later arrivals are hidden");
});

test("while a question is open, the sentence is the one that does not look ahead", () => {
  const [entry] = CHUNK.steps;
  const told = stepState({ ...CHUNK, steps: [{ ...entry, sentence: "out; back later", so_far: "out" }, ...CHUNK.steps.slice(1)] }, CHUNK.first);
  assert.equal(told.soFar, "out");
  const same = stepState({ ...CHUNK, steps: [{ ...entry, sentence: "in", so_far: undefined }, ...CHUNK.steps.slice(1)] }, CHUNK.first);
  assert.equal(same.soFar, "in");
});

test("an axis has round numbers and no more than fit", () => {
  for (const [count, most] of [[10, 12], [71, 14], [5000, 14], [50_000, 6], [1, 1]]) {
    const stride = strideFor(count, most);
    assert.ok(count / stride <= most && /^[125]0*$/.test(String(stride)), `${count}: ${stride}`);
  }
});

test("ids in few characters", () => {
  assert.equal(ranges([]), "");
  assert.equal(ranges([3, 4, 5, 9, 11, 12]), "3-5 9 11-12");
});

test("a long name keeps its beginning and its end", () => {
  assert.equal(shortened("cmpl-93f1c2-0", 6), "cmp…2-0");
  assert.notEqual(shortened("cmpl-93f1c2-0", 5), shortened("cmpl-93f1c2-1", 5));
});

test("what Python packed is unpacked, and the store then lacks only what was not sent", async () => {
  const { head, parts } = openEnvelope(new Uint8Array(readFileSync(process.env.STEP_ENVELOPE)));
  const store = new Store(head.run);
  store.describe(head);
  const lacks = (step) => store.missing(step, 0, null, null);
  assert.deepEqual(lacks(0), ["o", "w:0"]);
  for (const [name, part] of parts) await store.take(name, part);
  assert.deepEqual(lacks(0), []);
  assert.equal(store.figures.length, head.num_steps);
  assert.deepEqual(store.missing(0, 0, 5, "r1"), ["b:5:0", "r:r1"]);
  store.describe({ ...head, num_steps: head.num_steps + 1 });
  assert.deepEqual(lacks(0), ["o"], "the message about the last step of a live run was lost");
  store.describe(head);
  const { meta, arrays } = await unpackPart(parts.get("w:0"));
  assert.equal(arrays.base.length, head.num_blocks);
  assert.equal(arrays.offsets.length, meta.last - meta.first + 1);
  const frames = store.frames(head.num_steps - 1);
  for (let step = 0; step < head.num_steps; step++) {
    const [free, cached] = countStates(frames.at(step));
    assert.equal(free + cached, store.figures.free[step]);
  }
});

test("a block's text ends with the newest token whose KV exists, and a freed one has none", () => {
  const chunk = {
    first: 0, last: 3, text: { 1: "a", 2: "b·", 3: "c", 9: "!" }, places: { 4: [[0, "r", 7, 0], [2, null, -1, null]] }, tokens: { 7: [1, 2, 3, 9] },
    stays: [["r", 0, 2, [4], [[0, 1]], []]], lanes: [],
    steps: [{ rows: [["r", "prefill", 2, 0, 2, 3, 0, []]] }, { rows: [["r", "decode", 1, 2, 3, 4, 1, [9]]] }, {}],
  };
  const at = (step, state) => textIn(chunk, stepState(chunk, step), [0, 0, 0, 0, state], 4, 4);
  assert.equal(at(0, 2), "ab·");
  assert.equal(at(1, 2), "ab·c");
  assert.equal(at(1, 0), "");
  assert.equal(at(2, 1), "", "content from a transfer");
  delete chunk.text[2];
  assert.equal(at(1, 2), "1 2 3", "ids without the tokenizer");
});

test("a text in a cell is cut into lines and ends with an ellipsis if it goes on", () => {
  assert.deepEqual(linesOf("abcdef", 3, 2), ["abc", "def"]);
  assert.deepEqual(linesOf("abcdefg", 3, 2), ["abc", "de…"]);
  assert.deepEqual(linesOf("日本語x", 3, 1), ["日本…"]);
  assert.deepEqual(linesOf("", 3, 2), []);
});
