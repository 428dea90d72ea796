// node --test tests/app/debugger/charts.test.mjs: the parts of the charts that compute and do not draw.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const load = (name, folder = "charts") => {
  const source = readFileSync(new URL(`../../../app/debugger/${folder}/${name}`, import.meta.url), "utf8");
  return import(`data:text/javascript,${encodeURIComponent(source)}`);
};
const { inset, neighbour, shortened, ticks, wrapped } = await load("rects.js");
const { columnsFor, nextFrame, stripesOf } = await load("tour_view.js", "tour_view");
const { brief, ceiling, columnOf, describe, withUnit } = await load("lines.js");
const { boxesAlong, clearOf, labelPlaces, onCurve, roundValues, share, short, valueAt } = await load("plot.js");
const routes = await load("router_map.js", "capacity");

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

test("a figure of one has its unit in the singular", () => {
  assert.equal(withUnit("1", "requests"), "1 request");
  assert.equal(withUnit("1", "tokens, of the budget"), "1 token, of the budget");
  for (const [figure, unit] of [["0", "requests"], ["11", "requests"], ["1", "ms"], ["1", "tokens/s"]])
    assert.equal(withUnit(figure, unit), `${figure} ${unit}`);
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

test("a place on an axis and its value are inverse, linear and logarithmic", () => {
  for (const axis of [{ low: 0, high: 30, log: false }, { low: 0.1, high: 1e4, log: true }]) {
    for (const place of [0, 0.25, 0.5, 1]) assert.ok(Math.abs(share(axis, valueAt(axis, place)) - place) < 1e-9);
  }
  assert.equal(share({ low: 1, high: 10_000, log: true }, 100), 0.5);
});

test("round values lie on their axis, few and in order", () => {
  assert.deepEqual(roundValues({ low: 0, high: 32, log: false }, 4), [0, 10, 20, 30]);
  assert.deepEqual(roundValues({ low: 0, high: 0.7, log: false }, 4), [0, 0.2, 0.4, 0.6]);
  assert.deepEqual(roundValues({ low: 0.5, high: 20_000, log: true }, 6), [1, 10, 100, 1000, 10_000]);
  assert.deepEqual(roundValues({ low: 3, high: 60, log: true }, 6), [5, 10, 20, 50]);
});

test("figures of an axis are short", () => {
  assert.deepEqual([0, 0.25, 26.37, 5000, 12_000, 3.35e12, 9.894e14].map(short), ["0", "0.25", "26.4", "5,000", "12k", "3.35T", "989T"]);
});

test("the value of a curve between its points follows the axes, and is missing outside", () => {
  const linear = { low: 0, high: 10, log: false };
  const log = { low: 1, high: 100, log: true };
  assert.equal(onCurve([[0, 0], [10, 20]], 2.5, { x: linear, y: linear }), 5);
  assert.ok(Math.abs(onCurve([[1, 1], [100, 100]], 10, { x: log, y: log }) - 10) < 1e-9);
  assert.equal(onCurve([[1, 1], [2, 2]], 0.5, { x: linear, y: linear }), null);
  assert.equal(onCurve([[1, 1], [2, 2]], 3, { x: linear, y: linear }), null);
});

test("no label of a point covers another label or point", () => {
  const points = Array.from({ length: 9 }, (_, index) => ({ x: 200 + 9 * index, y: 150 - 6 * index, label: `point number ${index}` }));
  const places = labelPlaces(points, 600, 300);
  const boxes = places.flatMap((place, index) => {
    if (!place) return [];
    const long = 6.4 * points[index].label.length;
    const left = place[2] === "start" ? place[0] : place[0] - long;
    return [[left, place[1] - 10, left + long, place[1] + 2]];
  });
  assert.ok(boxes.length >= 7, `${boxes.length} of 9 have room`);
  boxes.forEach((box, index) => boxes.slice(index + 1).forEach((other) => {
    assert.ok(box[2] <= other[0] || other[2] <= box[0] || box[3] <= other[1] || other[3] <= box[1]);
  }));
});

test("a label of a point crosses no rule, and that of a horizontal rule no vertical one", () => {
  const rule = [155, 12, 159, 140]; // 2 pixels at each side of its line
  for (const [x, label] of [[176, "ana"], [165, "a long name"], [148, "eve"]]) {
    const [place] = labelPlaces([{ x, y: 70, label }], 200, 172, [rule]);
    if (!place) continue;
    const left = place[2] === "start" ? place[0] : place[0] - 6.4 * label.length;
    assert.ok(left + 6.4 * label.length <= 155 || left >= 159 || place[1] - 10 >= 140, `${label} at ${place}`);
  }
  const along = boxesAlong([[[60, 130], [180, 60]], [[60, 150], [180, 80]]]);
  const [[at, base, anchor]] = labelPlaces([{ x: 120, y: 95, label: "MLP" }], 600, 300, [], along);
  const left = anchor === "start" ? at : at - 19.2;
  assert.ok(!along.some((box) => box[0] < left + 19.2 && left < box[2] && box[1] < base + 2 && base - 10 < box[3]), "a place beside the curves is free");
  assert.ok(labelPlaces([{ x: 120, y: 95, label: "MLP" }], 600, 300, [], [[0, 0, 600, 300]])[0], "else over a curve");
  assert.equal(clearOf([], 80, 300), 62);
  assert.equal(clearOf([120], 80, 300), 126, "behind the line that would cross it");
  assert.equal(clearOf([120, 150], 80, 300), 156);
  assert.equal(clearOf([90, 150, 210, 270], 80, 300), 62, "no room is clear");
});

test("a decision is found by time and replica, and told with what the router saw", () => {
  const choices = [[0.5, 0, -1, 100, 1, "load", "its turn", []], [1.0, 1, 3, 1000, 0, "prefix", "50 blocks", [[0, 2, 50], [1, 4, 0]]], [1.2, 2, 3, 100, 1, "load", "", []]];
  assert.equal(routes.nearest(choices, 1.15, 0), 1);
  assert.equal(routes.nearest(choices, 1.15, 1), 2);
  assert.equal(routes.nearest(choices, 0.1, null), 0);
  assert.equal(routes.nearest([], 1, null), -1);
  assert.equal(
    routes.sentence(choices[1], { names: ["a", "b"], unit: "blocks" }),
    "request 1 (1,000 tokens, prefix 3) at 1.000 s went to a: 50 blocks\n→ a: 2 unfinished, 50 blocks cached\n  b: 4 unfinished, 0 blocks cached",
  );
  assert.deepEqual([-1, 0, 0.4, 0.5, 9].map((time) => routes.sampleAt([0, 0.5, 1], time)), [0, 0, 0, 1, 2]);
  assert.deepEqual(routes.seconds(0, 6.3, 7), [0, 1, 2, 3, 4, 5, 6]);
});

test("the animation of a tour ends at its last step, and its map is wider than high", () => {
  assert.deepEqual([nextFrame(0, 3), nextFrame(2, 3)], [1, 2]);
  for (const blocks of [1, 24, 159, 400]) assert.ok(columnsFor(blocks) <= blocks && columnsFor(blocks) ** 2 >= blocks);
});

test("a block of a tour has a stripe per owner, side by side, at most four", () => {
  assert.deepEqual(stripesOf(undefined), []);
  const stripes = stripesOf([3, 1, 4, 1, 5]);
  assert.deepEqual(stripes.map(({ look }) => look), [3, 1, 4, 1]);
  stripes.slice(1).forEach(({ x }, place) => assert.equal(x, stripes[place].x + stripes[place].width));
});
