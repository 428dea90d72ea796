// node --test tests/app/debugger/mock.test.mjs: the parts of the page Mock that compute.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const load = (name) => {
  const source = readFileSync(new URL(`../../../app/debugger/mock/${name}`, import.meta.url), "utf8");
  return import(`data:text/javascript,${encodeURIComponent(source)}`);
};
const { beganAt, clockTime, level } = await load("../charts/clock.js");
const { countWords, indentAfter } = await load("desk.js");
const { erased } = await load("board.js");

test("a clock that is drawn again for another theme goes on", () => {
  assert.equal(beganAt(1, 500), 500);
  assert.equal(beganAt(1, 900), 500);
  assert.equal(beganAt(2, 950), 950);
  assert.equal(beganAt(1, 990), 500, "two clocks of one page");
});

test("the clock shows minutes and seconds, amber from 80 % of a limit", () => {
  assert.deepEqual([0, 59.9, 754, 3600, -1].map(clockTime), ["00:00", "00:59", "12:34", "60:00", "00:00"]);
  assert.deepEqual([79, 80, 99.9, 100].map((spent) => level(spent, 100)), ["", "amber", "amber", "over"]);
});

test("words have a letter or a digit", () => {
  assert.equal(countWords(""), 0);
  assert.equal(countWords("  p99 – is 2 s;\n größer, 🙂 "), 5);
});

test("a new line keeps the indentation, and gets more after a colon", () => {
  const text = "def f():\n    if x:\n        return 1";
  assert.equal(indentAfter(text, 8), "    ");
  assert.equal(indentAfter(text, 18), "        ");
  assert.equal(indentAfter(text, text.length), "        ");
  assert.equal(indentAfter("", 0), "");
});

test("the eraser takes the strokes that it touches, between their points too", () => {
  const strokes = [[0, 0, 100, 0], [50, 50], [200, 200, 300, 300]];
  assert.deepEqual(erased(strokes, 50, 5), [[50, 50], [200, 200, 300, 300]]);
  assert.deepEqual(erased(strokes, 50, 30), strokes);
  assert.deepEqual(erased(strokes, 250, 255), [[0, 0, 100, 0], [50, 50]]);
});
