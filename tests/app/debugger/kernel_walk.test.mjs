// The parts of the kernel view and of the capacity tree that need no browser. Run by test_kernel_walk.py, which names
// the modules: WALK and TREE.

import assert from "node:assert/strict";
import { test } from "node:test";

const { formulas, sentence, shownPages } = await import(process.env.WALK);
const { explanation } = await import(process.env.TREE);

const page = { page: 3, block_id: 17, first: 48, num_tokens: 16, shared_with: [], is_null: false };
const visit = { score_max: 3, m: 3, rescale: 0.5, added: 1.25, mass: 2.25, share: 0.123, scores: [3, 1] };

test("the pages that are drawn hold the current one and are as many as fit", () => {
  for (const count of [1, 5, 40]) {
    for (const room of [0, 1, 7, 100]) {
      for (let current = 0; current < count; current++) {
        const [first, end] = shownPages(count, current, room);
        assert.ok(0 <= first && first <= current && current < end && end <= count);
        assert.equal(end - first, Math.max(1, Math.min(count, room)));
      }
    }
  }
});

test("the formulas carry the page's own numbers, and those before it", () => {
  const first = formulas({ ...visit, rescale: 0 }, null).map((row) => row[2]);
  assert.equal(first[1], "max(−∞, 3.000) = 3.000");
  assert.equal(first[3], "0 · 0 + 1.250 = 2.250");
  const later = formulas(visit, { m: 2.25, mass: 2 }).map((row) => row[2]);
  assert.equal(later[2], "exp(2.250 − 3.000) = 0.5000");
  assert.equal(later[3], "2.000 · 0.5000 + 1.250 = 2.250");
});

test("a page is told in one sentence", () => {
  assert.match(sentence(page, visit, 9), /^Page 3 of 0 to 8 is block 17: positions 48 to 63\. It holds 12\.3 % .* multiplied by 0\.5000/);
  assert.match(sentence(page, visit, 9, { isFirst: true }), /the sums start with it/);
  assert.match(sentence(page, { ...visit, rescale: 1 }, 9), /the maximum is unchanged/);
  assert.match(sentence({ ...page, shared_with: ["b", "c"] }, visit, 9), /shared with b, c/);
  assert.match(sentence({ ...page, is_null: true }, undefined, 9), /was freed/);
  assert.match(sentence({ ...page, num_tokens: 0 }, undefined, 9), /reserved for future tokens/);
  assert.match(sentence(page, undefined, 9), /does not read it/);
  assert.doesNotMatch(sentence(page, undefined, 9, { hasWalk: false }), /does not read it/);
});

test("an explanation leaves out what is empty", () => {
  const figure = { formula: "a / b", filled: "1 / 2", leaves_out: "", source: "x.py:1" };
  assert.deepEqual(explanation(figure).map((row) => row[0]), ["formula", "here", "source"]);
});
