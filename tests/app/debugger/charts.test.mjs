// node --test tests/app/debugger/charts.test.mjs: the parts of the charts that compute and do not draw.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const load = (name) => {
  const source = readFileSync(new URL(`../../../app/debugger/charts/${name}`, import.meta.url), "utf8");
  return import(`data:text/javascript,${encodeURIComponent(source)}`);
};
const { inset, neighbour, shortened, ticks, wrapped } = await load("rects.js");
const { brief, ceiling, columnOf, describe } = await load("lines.js");

test("ticks are round, inside, and no more than wanted", () => {
  for (let first = 0; first < 300; first += 17) {
    for (const length of [0, 1, 2, 9, 61, 600, 5000, 49_999]) {
      const found = ticks(first, first + length, 8);
      assert.ok(found.length <= 9, `${found}`);
      assert.ok(found.every((tick) => Number.isInteger(tick) && tick >= first && tick < first + length));
      assert.deepEqual([...new Set(found)].sort((a, b) => a - b), found);
    }
  }
  assert.deepEqual(ticks(0, 3, 8), [0, 1, 2]);
  assert.deepEqual(ticks(17, 60, 5), [20, 30, 40, 50]);
});

test("arrow keys walk along the row and to the nearest bar of the next row, and stay at the edge", () => {
  const rects = [[0, 4, 0], [4, 9, 0], [0, 2, 1], [2, 9, 1], [6, 9, 3]];
  assert.equal(neighbour(rects, 0, "ArrowRight"), 1);
  assert.equal(neighbour(rects, 1, "ArrowLeft"), 0);
  assert.equal(neighbour(rects, 1, "ArrowRight"), 1);
  assert.equal(neighbour(rects, 1, "ArrowDown"), 3);
  assert.equal(neighbour(rects, 0, "ArrowDown"), 2);
  assert.equal(neighbour(rects, 3, "ArrowDown"), 4);
  assert.equal(neighbour(rects, 4, "ArrowUp"), 3);
  assert.equal(neighbour(rects, 4, "ArrowDown"), 4);
});

test("phases differ in height", () => {
  const heights = ["waiting", "prefill", "decode"].map((style) => 18 - 2 * inset(style, 18));
  assert.equal(new Set(heights).size, 3);
  assert.ok(heights.every((height) => height >= 4));
});

test("a node's text fills its lines, and an ellipsis ends what does not fit", () => {
  assert.deepEqual(wrapped("abcdefgh", 3, 2), ["abc", "defgh"]);
  assert.deepEqual(wrapped("abc", 3, 2), ["abc"]);
  assert.deepEqual(wrapped("", 3, 2), [""]);
  assert.equal(shortened("defgh", 3), "de…");
  assert.equal(shortened("日本語", 3), "日本語");
  assert.equal(shortened("abc", 2), "");
});

test("a step is in the last column that begins at it or before", () => {
  const first = [10, 14, 18, 22];
  assert.deepEqual([10, 13, 14, 21, 22, 99].map((step) => columnOf(first, step)), [0, 0, 1, 2, 3, 3]);
});

test("the axis reaches the limit unless that would flatten everything", () => {
  const chart = (high, limit) => ({ high, limit });
  assert.equal(ceiling(chart([3, 7], 10)), 10);
  assert.equal(ceiling(chart([3, 7], 1000)), 7);
  assert.equal(ceiling(chart([3, 12], 10)), 12);
  assert.equal(ceiling(chart([null, 0], null)), 1);
});

test("figures are short and the text tells the column with what happened in it", () => {
  assert.deepEqual([0, 7, 0.123456, 2484.4, 12_400, 2_500_000, null].map(brief), ["0", "7", "0.123", "2,484", "12.4k", "2.5M", "–"]);
  const data = {
    charts: [{ title: "Running", low: [1, 2], high: [1, 5] }],
    first: [0, 4],
    end: 8,
    marks: [[5, "preempt", "1 preempted"], [1, "abort", "1 aborted"]],
  };
  assert.equal(describe(data, 6), "steps 4 to 7: running 2 to 5, 1 preempted");
});

test("a chart over time tells how long ago, and what happened then", () => {
  const data = {
    charts: [{ title: "Running", low: [null, 2, 3], high: [null, 5, 3] }],
    first: [-60, -12.2, -11.1],
    end: 0,
    step: null,
    marks: [[-11.5, "abort", "went away"]],
  };
  assert.equal(describe(data, -12), "11 s ago: running 2 to 5, went away");
  assert.equal(describe(data, -1), "0 s ago: running 3");
  assert.equal(describe(data, -60), "12 s ago: running –");
});
