// The steps of a stop: blocks in the colours of their owners, lives of requests, and at the end the call-outs.
//
//   data = { first, frames: [{step, states, owners, changed, sentence}], lanes: [{name, look, holds, phases}],
//            callouts: [{text, blocks, lane}], request, num_blocks }                     as in `frames.py`

const FRAME_MS = 750;
const CELL = 22, GAP = 4;
const MOST_OWNERS = 4;
const NUM_COLOURS = 7;
const SVG = "http://www.w3.org/2000/svg";
const PHASES = ["waiting", "prefill", "decode", "preempted"];

function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Columns of a map that is about three times as wide as high. */
export function columnsFor(numBlocks) {
  return Math.min(numBlocks, Math.max(8, Math.ceil(Math.sqrt(numBlocks * 3))));
}

/** A look is a colour, and a number where living requests share the colour: as in `request_colours.py`. */
export function colourOf(look) {
  return look % NUM_COLOURS;
}

export function markOf(look) {
  return look < NUM_COLOURS ? "" : `${Math.floor(look / NUM_COLOURS) + 1}`;
}

/** The widths and looks of a block's stripes. */
export function stripesOf(owners) {
  const shown = (owners ?? []).slice(0, MOST_OWNERS);
  return shown.map((look, place) => ({ x: (place * CELL) / shown.length, width: CELL / shown.length, look }));
}

/** The next frame; the last one stays. */
export function nextFrame(at, count) {
  return Math.min(at + 1, count - 1);
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".tour");
  const key = `${data.run} ${data.first} ${data.frames.at(-1).step} ${data.request}`;
  if (root.dataset.key === key) return undefined;
  root.player?.close();
  root.dataset.key = key;
  root.player = new Player(root, data);
  return () => setTimeout(() => root.isConnected || root.player.close());
}

class Player {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.ended = new AbortController();
    this.find(".at").max = data.frames.length - 1;
    this.buildMap();
    this.buildLives();
    this.buildCallouts();
    this.buildLegend();
    this.listen();
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.show(this.isStill ? data.frames.length - 1 : 0);
    this.showButton();
    if (!this.isStill) this.play();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  close() {
    clearInterval(this.timer);
    this.ended.abort();
    this.observer.disconnect();
  }

  listen() {
    const { signal } = this.ended;
    this.find(".play").addEventListener("click", () => (this.timer ? this.pause() : this.play()), { signal });
    this.find(".replay").addEventListener("click", () => (this.show(0), this.play()), { signal });
    this.find(".at").addEventListener("input", (event) => (this.pause(), this.show(Number(event.target.value))), { signal });
    this.observer = new ResizeObserver(() => this.drawLeaders());
    this.observer.observe(this.root);
  }

  // ---------------------------------------------------------------- playing

  play() {
    clearInterval(this.timer);
    if (this.at === this.last) this.show(0);
    this.timer = setInterval(() => {
      this.show(nextFrame(this.at, this.data.frames.length));
      if (this.at === this.last) this.pause();
    }, FRAME_MS);
    this.showButton();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.showButton();
  }

  showButton() {
    this.find(".play").textContent = this.timer ? "▮▮ pause" : "▶ play";
  }

  get last() {
    return this.data.frames.length - 1;
  }

  // ---------------------------------------------------------------- building

  buildMap() {
    const { num_blocks: count } = this.data;
    const columns = columnsFor(count), pitch = CELL + GAP, rows = Math.ceil(count / columns);
    const svg = this.find(".map");
    svg.setAttribute("viewBox", `-3 -3 ${columns * pitch + 2} ${rows * pitch + 2}`);
    const anchored = new Set(this.data.callouts.flatMap(({ blocks }) => blocks));
    this.cells = Array.from({ length: count }, (_, place) => {
      const stripes = Array.from({ length: MOST_OWNERS }, () => make("svg:rect", { class: "stripe", y: 0, height: CELL }));
      const marks = Array.from({ length: MOST_OWNERS }, () => make("svg:text", { class: "mark", y: CELL - 2 }));
      const hatch = make("svg:path", { class: "hatch", d: `M0 ${CELL / 2}L${CELL / 2} 0M0 ${CELL}L${CELL} 0M${CELL / 2} ${CELL}L${CELL} ${CELL / 2}` });
      const cell = make("svg:rect", { class: "cell", width: CELL, height: CELL, rx: 2 });
      const title = make("svg:title");
      const x = (place % columns) * pitch, y = Math.floor(place / columns) * pitch;
      const group = make("svg:g", { transform: `translate(${x} ${y})`, "data-block": place + 1 }, ...stripes, ...marks, hatch, cell, title);
      return { group, stripes, marks, title, base: `${anchored.has(place + 1) ? " anchor" : ""}` };
    });
    svg.replaceChildren(...this.cells.map(({ group }) => group));
  }

  buildLives() {
    this.lanes = new Map();
    const rows = this.data.lanes.flatMap(({ name, look, phases }) => {
      const steps = phases.map((phase, place) => make("i", { class: `p${phase}`, title: phase < 0 ? "" : `step ${this.data.first + place}: ${PHASES[phase]}` }));
      const lane = make("div", { class: "lane", style: `--own: var(--request-${colourOf(look)})` }, ...steps);
      this.lanes.set(name, { lane, steps });
      return [make("span", { class: "name", title: name }, [markOf(look), name].filter(Boolean).join(" ")), lane];
    });
    this.find(".lives").replaceChildren(...rows);
  }

  buildCallouts() {
    this.pills = this.data.callouts.map(({ text }) => make("li", {}, text));
    this.find(".callouts").replaceChildren(...this.pills);
  }

  buildLegend() {
    const swatch = (look) => make("i", { style: `background: var(--request-${colourOf(look)})` });
    const holders = this.data.lanes.filter(({ holds }) => holds);
    const names = holders.map(({ name, look }) => make("span", {}, swatch(look), [markOf(look), name].filter(Boolean).join(" ")));
    const kinds = [["cached", "cached, free"], ["free", "empty"], ["changed", "changed in this step"], ["anchored", "in a call-out"]];
    const others = kinds.map(([kind, words]) => make("span", {}, make("i", { class: kind }), words));
    this.find(".legend").replaceChildren(...names, ...others);
  }

  // ---------------------------------------------------------------- showing

  show(at) {
    this.at = at;
    const frame = this.data.frames[at];
    const changed = new Set(frame.changed), counts = [0, 0, 0, 0];
    this.cells.forEach(({ group, stripes, marks, title, base }, place) => {
      const block = place + 1, state = frame.states[place], owners = stripesOf(frame.owners[block]);
      counts[state] += 1;
      group.setAttribute("class", `s${state}${base}${changed.has(block) ? " changed" : ""}`);
      stripes.forEach((stripe, number) => {
        const { x = 0, width = 0, look } = owners[number] ?? {};
        stripe.style.opacity = look === undefined ? 0 : 1;
        marks[number].textContent = look === undefined ? "" : markOf(look);
        if (look === undefined) return;
        marks[number].setAttribute("x", x + 1);
        stripe.setAttribute("x", x);
        stripe.setAttribute("width", width);
        stripe.style.fill = `var(--request-${colourOf(look)})`;
      });
      const held = frame.owners[block]?.length ?? 0;
      title.textContent = `block ${block}: ${held ? `held by ${held} request${held === 1 ? "" : "s"}` : state === "1" ? "cached, free" : "empty"}`;
    });
    const words = `step ${frame.step}: ${counts[2]} used, ${counts[3]} shared, ${counts[1]} cached and free, ${counts[0]} empty`;
    this.find(".map").setAttribute("aria-label", words);
    for (const { steps } of this.lanes.values()) {
      steps.forEach((step, place) => {
        step.classList.toggle("ahead", place > at);
        step.classList.toggle("here", place === at);
      });
    }
    this.find(".told").textContent = frame.sentence;
    this.find(".now").textContent = `step ${frame.step}`;
    this.find(".at").value = at;
    this.find(".at").setAttribute("aria-valuetext", `step ${frame.step}`);
    this.root.dataset.step = frame.step;
    this.root.toggleAttribute("data-over", at === this.last);
    if (at === this.last) this.drawLeaders();
  }

  /** Lines from each call-out to the nearest of its blocks, or to its lane. */
  drawLeaders() {
    const stage = this.find(".stage").getBoundingClientRect();
    const lines = this.data.callouts.flatMap(({ blocks, lane }, number) => {
      const from = this.pills[number].getBoundingClientRect();
      const targets = lane ? [this.lanes.get(lane)?.lane] : blocks.map((block) => this.cells[block - 1]?.group.querySelector(".cell"));
      const start = { x: from.left - stage.left, y: from.top + from.height / 2 - stage.top };
      const ends = targets.filter(Boolean).map((target) => {
        const box = target.getBoundingClientRect();
        return { x: box.right - stage.left, y: box.top + box.height / 2 - stage.top };
      });
      const far = (end) => (end.x - start.x) ** 2 + (end.y - start.y) ** 2;
      const end = ends.sort((a, b) => far(a) - far(b))[0];
      if (!end || end.x > start.x) return [];
      const middle = (start.x + end.x) / 2;
      return [
        make("svg:path", { d: `M${start.x} ${start.y}C${middle} ${start.y} ${middle} ${end.y} ${end.x} ${end.y}` }),
        make("svg:circle", { cx: end.x, cy: end.y, r: 3 }),
      ];
    });
    this.find(".leaders").replaceChildren(...lines);
  }
}
