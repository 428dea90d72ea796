// Step through the pages of a block table: its block and its effect on the running softmax.
// data = { key, block_size, pages: [{page, block_id, first, num_tokens, shared_with, is_null, text}], walk: answer | null,
//          code: [{form, lines: [{idea, name, place, text}]}] }

const number = (value) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
};
const percent = (share) => (share < 0.0005 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** Pages around `current` that fit `room`: [first, end). */
export function shownPages(count, current, room) {
  const fit = Math.max(1, Math.min(count, room));
  const first = Math.max(0, Math.min(current - Math.floor(fit / 2), count - fit));
  return [first, first + fit];
}

/** The formulas of one page with its numbers; `before` is the visit before it, or null. */
export function formulas(visit, before) {
  const m = before ? number(before.m) : "−∞";
  const l = before ? number(before.mass) : "0";
  return [
    ["max s", "max over the page of scale · q·k", `${number(visit.score_max)}`],
    ["m′", "max(m, max s)", `max(${m}, ${number(visit.score_max)}) = ${number(visit.m)}`],
    ["r", "exp(m − m′)", `exp(${m} − ${number(visit.m)}) = ${number(visit.rescale)}`],
    ["l′", "l · r + Σ exp(s − m′)", `${l} · ${number(visit.rescale)} + ${number(visit.added)} = ${number(visit.mass)}`],
    ["acc′", "acc · r + Σ exp(s − m′) · v", `acc · ${number(visit.rescale)} + ${plural(visit.scores.length, "value")}`],
  ];
}

/** The effect of a page's maximum on the earlier sums. */
function effect(visit, isFirst) {
  if (isFirst) return "the sums start with it";
  if (visit.rescale === 1) return "the maximum is unchanged, so earlier sums are too";
  return `its maximum is higher, so earlier sums are multiplied by ${number(visit.rescale)}`;
}

/** One sentence about a page, shown and read by screen readers. */
export function sentence(page, visit, count, { hasWalk = true, isFirst = false } = {}) {
  const place = `Page ${page.page} of 0 to ${count - 1}`;
  if (page.is_null) return `${place}: its block was freed, because its tokens are behind the sliding window.`;
  const shared = page.shared_with.length ? `, shared with ${page.shared_with.join(", ")}` : "";
  if (!page.num_tokens) return `${place} is block ${page.block_id}, reserved for future tokens.`;
  const end = page.first + page.num_tokens - 1;
  const what = `${place} is block ${page.block_id}${shared}: positions ${page.first} to ${end}`;
  if (!visit) return hasWalk ? `${what}. This query does not read it.` : `${what}.`;
  return `${what}. It holds ${percent(visit.share)} of the softmax's mass; ${effect(visit, isFirst)}.`;
}

const svgNode = (tag, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

const node = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

const CELL = 46;

/** Logical pages above, physical blocks below in the order of the pool, an arrow for each entry of the table. */
function drawMap(svg, view) {
  const { data, current, visitOf } = view;
  const room = Math.floor((svg.parentElement.clientWidth || 640) / CELL);
  const [first, end] = shownPages(data.pages.length, current, room);
  const pages = data.pages.slice(first, end);
  const blocks = [...new Set(pages.filter((p) => !p.is_null).map((p) => p.block_id))].sort((a, b) => a - b);
  const width = Math.max(pages.length, blocks.length) * CELL;
  svg.setAttribute("viewBox", `0 0 ${width} 150`);
  svg.style.maxWidth = `${width}px`;
  svg.replaceChildren();
  const at = (index) => index * CELL + CELL / 2;
  for (const [index, page] of pages.entries()) {
    const isNow = page.page === current;
    const state = isNow ? "now" : data.walk && !visitOf.has(page.page) ? "unread" : page.page < current ? "done" : "ahead";
    const group = svgNode("g", { class: `page ${state}`, "data-page": page.page });
    if (!page.is_null) {
      const to = at(blocks.indexOf(page.block_id));
      group.append(svgNode("path", { class: "arrow", d: `M${at(index)} 42 C${at(index)} 76 ${to} 72 ${to} 100`, "marker-end": `url(#${isNow ? "tip-now" : "tip"})` }));
    }
    group.append(svgNode("rect", { class: "cell", x: at(index) - 20, y: 14, width: 40, height: 28, rx: 3 }));
    const full = page.num_tokens / data.block_size;
    group.append(svgNode("rect", { class: "fill", x: at(index) - 20, y: 38, width: 40 * full, height: 4 }));
    group.append(svgNode("text", { x: at(index), y: 32 }, page.is_null ? "∅" : page.page));
    group.addEventListener("click", () => view.go(page.page));
    svg.append(group);
  }
  for (const [index, block] of blocks.entries()) {
    const page = pages.find((p) => p.block_id === block && !p.is_null);
    const isNow = page.page === current;
    const group = svgNode("g", { class: `block ${isNow ? "now" : ""}` });
    group.append(svgNode("rect", { class: "cell", x: at(index) - 20, y: 104, width: 40, height: 28, rx: 3 }));
    group.append(svgNode("text", { x: at(index), y: 122 }, `${block}${page.shared_with.length ? "●" : ""}`));
    svg.append(group);
  }
  svg.append(svgNode("text", { class: "axis", x: 2, y: 9 }, first || end < data.pages.length ? `pages ${first} to ${end - 1} of ${data.pages.length}` : "block table: page"));
  svg.append(svgNode("text", { class: "axis", x: 2, y: 146 }, "physical block (● shared)"));
  const defs = svgNode("defs", {});
  for (const [id, colour] of [["tip", "#64748b"], ["tip-now", "#E69F00"]]) {
    const marker = svgNode("marker", { id, viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" });
    marker.append(svgNode("path", { d: "M0 0 L6 3 L0 6 z", fill: colour }));
    defs.append(marker);
  }
  svg.append(defs);
  svg.setAttribute("aria-label", `block table: ${data.pages.map((p) => (p.is_null ? `page ${p.page} freed` : `page ${p.page} in block ${p.block_id}`)).join(", ")}`);
}

function drawFormulas(host, view) {
  const visit = view.visitOf.get(view.current);
  host.replaceChildren();
  if (!visit) return;
  const before = view.visitOf.get(view.current - 1) ?? null;
  for (const [name, formula, filled] of formulas(visit, before)) {
    host.append(node("dt", "", name), node("dd", "formula", formula), node("dd", "filled", filled));
  }
  if (visit === view.data.walk.pages.at(-1)) {
    host.append(node("dt", "", "out"), node("dd", "formula", "acc / l after the last page"), node("dd", "filled", `acc / ${number(visit.mass)}`));
  }
}

/** acc / l after this page above the final output: a strip of cells, blue for positive, red for negative. */
function drawStrips(host, view) {
  const visit = view.visitOf.get(view.current);
  host.replaceChildren();
  if (!visit) return;
  const out = view.data.walk.output;
  const now = visit.acc.map((value) => value / visit.mass);
  const top = Math.max(...out.map(Math.abs), ...now.map(Math.abs), 1e-30);
  const distance = Math.sqrt(now.reduce((sum, value, i) => sum + (value - out[i]) ** 2, 0));
  for (const [name, values] of [["acc / l so far", now], ["output", out]]) {
    const strip = node("div", "strip");
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-label", `${name}: ${values.slice(0, 8).map(number).join(", ")}${values.length > 8 ? ", …" : ""}`);
    for (const value of values) {
      const cell = node("i");
      cell.style.background = value < 0 ? "#D55E00" : "#56B4E9";
      cell.style.opacity = 0.08 + 0.92 * Math.abs(value) / top;
      cell.title = number(value);
      strip.append(cell);
    }
    host.append(node("span", "name", name), strip);
  }
  host.append(node("span", "name", ""), node("span", "name", `distance to the output: ${number(distance)}`));
}

/** The page's tokens, shaded by their share of the softmax. */
function drawTokens(host, view) {
  const page = view.data.pages[view.current], visit = view.visitOf.get(view.current);
  host.replaceChildren();
  const last = view.data.walk?.pages.at(-1);
  const skipped = visit ? visit.first - page.first : 0;
  page.text.forEach((text, index) => {
    const token = node("span", "token", text);
    const score = visit?.scores[index - skipped];
    if (score !== undefined) {
      const share = Math.exp(score - last.m) / last.mass;
      token.style.backgroundColor = `rgba(230, 159, 0, ${Math.min(0.85, 0.85 * Math.sqrt(share)).toFixed(3)})`;
      token.title = `position ${page.first + index}: score ${number(score)}, ${percent(share)}`;
    } else if (view.data.walk) token.classList.add("unseen");
    host.append(token);
  });
  if (page.num_tokens && page.num_tokens < view.data.block_size) {
    host.append(node("span", "empty", `${plural(view.data.block_size - page.num_tokens, "slot")} empty`));
  }
}

const HEAD_ROW = 17;
/** Pixels of a head's row with its gap, as in `walk.css`. */

/** One row per head, one cell per page that was read, shaded by its share of the head's softmax. */
function drawHeads(host, view) {
  const { walk } = view.data;
  host.style.minHeight = `${HEAD_ROW * view.data.num_heads}px`; // so that the page keeps its place when scores arrive
  host.replaceChildren();
  if (!walk) return;
  walk.shares.forEach((shares, head) => {
    const row = node("button", head === walk.head ? "chosen" : "");
    row.append(node("b", "", `head ${head}`));
    shares.forEach((share, index) => {
      const cell = node("i", walk.pages[index].page === view.current ? "now" : "");
      cell.style.opacity = 0.06 + 0.94 * Math.sqrt(share);
      cell.title = `page ${walk.pages[index].page}: ${percent(share)}`;
      row.append(cell);
    });
    const most = shares.indexOf(Math.max(...shares));
    row.setAttribute("aria-label", `head ${head}: most in page ${walk.pages[most].page}, ${percent(shares[most])}. Select this head`);
    row.addEventListener("click", () => view.chooseHead(head));
    host.append(row);
  });
}

/** The line of each calculation in one implementation. The calculations have the names of the formulas above. */
function drawCode(host, view) {
  const choice = host.querySelector("select"), list = host.querySelector("dl");
  const forms = view.data.code;
  if (choice.options.length !== forms.length) {
    choice.replaceChildren(...forms.map(({ form }) => new Option(form)));
    choice.value = "CUDA";
  }
  const { lines } = forms.find(({ form }) => form === choice.value) ?? forms[0];
  list.replaceChildren();
  for (const line of lines) {
    const code = node("dd", "", line.text);
    code.title = line.text;
    code.append(node("small", "", `${line.place} · ${line.idea}`));
    list.append(node("dt", "", line.name), code);
  }
  choice.onchange = () => drawCode(host, view);
}

function drawTable(body, view) {
  const top = Math.max(...[...view.visitOf.values()].map((visit) => visit.share), 1e-9);
  body.replaceChildren();
  for (const page of view.data.pages) {
    const visit = view.visitOf.get(page.page);
    const row = node("tr");
    row.dataset.page = page.page;
    const bar = node("td", "share");
    if (visit) {
      const fill = node("i");
      fill.style.width = `${(100 * visit.share) / top}%`;
      bar.append(fill, node("span", "", percent(visit.share)));
    }
    const cells = [
      page.page,
      page.is_null ? "∅ given back" : `${page.block_id}${page.shared_with.length ? " ●" : ""}`,
      page.num_tokens ? `${page.first}–${page.first + page.num_tokens - 1}` : "reserved",
    ];
    for (const text of cells) row.append(node("td", "", text));
    row.append(bar);
    const figures = visit ? [visit.score_max, visit.m, visit.rescale, visit.mass].map(number) : ["", "", "", ""];
    for (const text of [...figures, visit ? visit.bytes.toLocaleString("en") : view.data.walk ? "0" : ""]) row.append(node("td", "figure", text));
    row.addEventListener("click", () => view.go(page.page));
    body.append(row);
  }
}

function draw(view) {
  const { root, data, current } = view;
  const page = data.pages[current];
  const find = (name) => root.querySelector(name);
  find("input").value = current;
  find(".where").textContent = `page ${current}`;
  find(".said").textContent = sentence(page, view.visitOf.get(current), data.pages.length, {
    hasWalk: data.walk !== null,
    isFirst: data.walk?.pages[0].page === current,
  });
  drawMap(find("svg"), view);
  drawFormulas(find(".formulas"), view);
  drawStrips(find(".strips"), view);
  drawTokens(find(".tokens"), view);
  for (const row of find(".heads").children) {
    [...row.querySelectorAll("i")].forEach((cell, index) => cell.classList.toggle("now", data.walk.pages[index].page === current));
  }
  for (const row of find("tbody").rows) {
    const isNow = Number(row.dataset.page) === current;
    row.classList.toggle("now", isNow);
    if (isNow) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
  root.dataset.page = current;
}

const PLAY_MS = 700;

/** Start or stop visiting page after page, from the first one after the last. */
function play(view) {
  const button = view.root.querySelector(".play"), last = view.data.pages.length - 1;
  const stop = () => {
    clearInterval(view.timer);
    view.timer = null;
    button.textContent = "▶ play";
  };
  if (view.timer) return stop();
  button.textContent = "⏸ pause";
  if (view.current >= last) view.go(0);
  view.timer = setInterval(() => {
    view.go(view.current + 1);
    if (view.current >= last) stop();
  }, PLAY_MS);
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".walk");
  const visitOf = new Map((data.walk?.pages ?? []).map((visit) => [visit.page, visit]));
  const kept = root.view?.data.key === data.key ? root.view.current : undefined;
  const first = data.walk ? data.walk.pages[0].page : 0;
  const view = { root, data, visitOf, current: Math.min(kept ?? first, data.pages.length - 1) };
  view.go = (page) => {
    view.current = Math.max(0, Math.min(page, data.pages.length - 1));
    draw(view);
  };
  clearInterval(root.view?.timer);
  root.querySelector(".play").textContent = "▶ play";
  root.view = view;
  const slider = root.querySelector("input");
  slider.max = data.pages.length - 1;
  slider.oninput = () => view.go(Number(slider.value));
  for (const [name, target] of [[".start", () => 0], [".back", () => view.current - 1], [".on", () => view.current + 1], [".end", () => data.pages.length - 1]]) {
    root.querySelector(name).onclick = () => view.go(target());
  }
  root.onkeydown = (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, "[": -1, "]": 1 };
    if (event.key in moves) view.go(view.current + moves[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === "Home") view.go(0);
    else if (event.key === "End") view.go(data.pages.length - 1);
    else if (event.key === " " && event.target.tagName !== "BUTTON") play(view);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move by a step
  };
  root.querySelector(".play").onclick = () => play(view);
  root.watcher?.disconnect();
  let width = root.clientWidth;
  root.watcher = new ResizeObserver(() => {
    if (root.clientWidth !== width) {
      width = root.clientWidth;
      drawMap(root.querySelector("svg"), view);
    }
  });
  root.watcher.observe(root);
  view.chooseHead = (head) => setTriggerValue("head", head);
  drawTable(root.querySelector("tbody"), view);
  drawHeads(root.querySelector(".heads"), view);
  drawCode(root.querySelector(".code"), view);
  draw(view);
  return () => {
    root.watcher.disconnect();
    clearInterval(view.timer);
  };
}
