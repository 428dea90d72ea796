// The page Step: one object per mounted component. It caches the parts it received, moves through the run on its own,
// and contacts Python only to fetch missing parts and to report its final position.

import { playTo, nextStop, stopsAt } from "./breaks.js";
import { countStates } from "./frames.js";
import { commandOf, KEYS } from "./keys.js";
import { BlockMap, blockAt, moved } from "./block_map.js";
import { el, fillBatch, fillBlockFacts, fillEvents, fillQueue, fillRequestFacts, fillSource, mostRows, number } from "./panels.js";
import { stateText, stepState } from "./step_state.js";
import { openEnvelope, Store } from "./store.js";
import { TICKS, Timeline } from "./timeline.js";

const REPORT_MS = 200;
/** Delay between the last movement and the report to Python. */
const ASK_AGAIN_MS = 2500;
const TABLES_MS = 200;
/** Interval between two drawings of the tables during playback. */
const SPEAK_MS = 1000;
const PREFETCH_STEPS = 24;
const FOLLOW_MS = 250, FOLLOW_MOST_MS = 1500, FOLLOW_FRAME_MS = 33;
/** Interval between two refreshes of a live run, as in pages/step.py, and on a busy machine; minimum time per step. */
const FOLLOW_STEPS = 60;
/** A live run further ahead is shown by a jump instead of step by step. */
const MAP_HEIGHT = 520;

/** Streamlit calls this after every run of the script, with the same element. */
export default function stepView(component) {
  const root = component.parentElement.querySelector(".step-view");
  root.view ??= new StepView(root);
  root.view.receive(component);
  return () => setTimeout(() => root.isConnected || root.view?.close());
}

class StepView {
  constructor(root) {
    this.root = root;
    this.map = new BlockMap(this.find(".map"));
    this.timeline = new Timeline(this.find(".timeline"));
    this.step = 0;
    this.request = this.block = this.cursor = null;
    this.playing = false;
    this.range = null;
    this.jump = null;
    this.asked = null;
    this.sequence = 0;
    this.allRows = false;
    this.listeners = new AbortController();
    this.listen();
    this.showKeys();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  close() {
    this.listeners.abort();
    this.observer.disconnect();
    clearInterval(this.followTimer);
    this.pause();
    clearTimeout(this.reportTimer);
    clearTimeout(this.askTimer);
  }

  // ---------------------------------------------------------------- messages from Python

  async receive(component) {
    this.say = (value) => component.setTriggerValue("say", value);
    const { head, parts } = openEnvelope(new Uint8Array(component.data));
    if (this.store?.run !== head.run) this.begin(head);
    this.head = head;
    const store = this.store;
    store.describe(head);
    this.taking = true;
    try {
      for (const [key, part] of parts) await store.take(key, part);
    } finally {
      if (store === this.store) this.taking = false;
    }
    if (store !== this.store) return;
    if (this.asked && head.answer >= this.asked.sequence) this.asked = null;
    if (head.jump.id !== this.jump) this.adopt(head.jump);
    if (head.notice !== undefined) this.find(".notice").textContent = head.notice;
    if (parts.has("o")) this.figuresChanged();
    this.follow();
    this.refresh();
  }

  begin(head) {
    this.pause();
    this.store = new Store(head.run);
    this.range = null;
    this.jump = null;
    this.asked = null;
    this.find(".title").textContent = head.title;
    this.find(".follow").hidden = !head.live;
  }

  /** Go to the place set by another page, a permalink or a panel. */
  adopt({ id, step, request, block }) {
    this.jump = id;
    Object.assign(this, { step, request, block });
    this.told = this.place;
    if (block !== null) this.cursor = block;
    this.find(".find").value = request ?? "";
  }

  figuresChanged() {
    if (!this.store.ready) return;
    this.step = Math.max(0, Math.min(this.step, this.last));
    this.layOut();
  }

  follow() {
    if (!this.head.live || !this.store.ready || !this.find(".follow input").checked) return;
    clearInterval(this.followTimer);
    this.walking = false;
    if (this.playing) return;
    const behind = this.last - this.step;
    if (behind <= 1 || behind > FOLLOW_STEPS || matchMedia("(prefers-reduced-motion: reduce)").matches) this.step = this.last;
    else this.walk(behind);
  }

  /** Show each step of a live run until the next ones arrive, not only the last one of every refresh. */
  walk(behind) {
    const now = performance.now(), since = Math.min(now - (this.lookedAt ?? now - FOLLOW_MS), FOLLOW_MOST_MS);
    this.lookedAt = now;
    this.lookMs = 0.7 * (this.lookMs ?? FOLLOW_MS) + 0.3 * since;
    const pause = Math.max(FOLLOW_FRAME_MS, this.lookMs / behind);
    const stride = Math.ceil((behind * pause) / this.lookMs - 0.5);
    const on = () => {
      this.step = Math.min(this.step + stride, this.last);
      this.walking = this.step < this.last;
      if (!this.walking) clearInterval(this.followTimer);
      this.refresh();
    };
    this.followTimer = setInterval(on, pause);
    on();
  }

  get last() {
    return this.store.figures.length - 1;
  }

  // ---------------------------------------------------------------- moving

  /** Show a step; report it to Python after a pause without movement. */
  goTo(step) {
    if (!this.store?.ready) return;
    this.step = Math.max(0, Math.min(this.last, step));
    this.refresh();
    this.report();
  }

  command(name, ...values) {
    if (!this.store?.ready) return;
    const [a, b] = values.map(Number);
    if (name !== "play" && name !== "help" && name !== "fork") this.pause();
    this.find(".notice").textContent = "";
    if (this.head.live && ["step", "first", "play", "break"].includes(name)) {
      this.find(".follow input").checked = false;
      clearInterval(this.followTimer);
      this.walking = false;
    }
    if (name === "step") this.goTo(this.step + a);
    else if (name === "first") this.goTo(0);
    else if (name === "last") this.goTo(this.last);
    else if (name === "play") this.playing ? this.pause() : this.play();
    else if (name === "break") this.toBreak(a);
    else if (name === "cursor") this.moveCursor(a, b);
    else if (name === "pick") this.select({ block: this.cursor });
    else if (name === "blockEvent") this.toBlockEvent(a);
    else if (name === "find") this.find(".find").focus();
    else if (name === "clear") this.select({ block: null, request: null });
    else if (name === "help") this.toggleKeys();
    else if (name === "fork") this.send({ fork: this.step });
    else if (name === "whole") this.look(null);
  }

  toBreak(direction) {
    const step = nextStop(this.store.figures, this.breaks(), this.step, direction, this.last);
    if (step < 0) {
      const what = [...this.root.querySelectorAll("[data-break]:checked")].map((box) => box.dataset.break).join(", ");
      this.find(".notice").textContent = what ? `no ${direction > 0 ? "later" : "earlier"} step with ${what}` : "no breakpoint is selected";
      return;
    }
    this.goTo(step);
    this.sayWhyStopped();
  }

  sayWhyStopped() {
    const found = stopsAt(this.store.figures, this.breaks(), this.step);
    this.find(".notice").textContent = found.length ? `stopped at step ${this.step}: ${found.join(", ")}` : "";
  }

  breaks() {
    const on = [...this.root.querySelectorAll("[data-break]:checked")].map((box) => box.dataset.break);
    const events = this.requestEvents();
    return {
      kinds: new Set(on.filter((kind) => kind !== "free" && kind !== "request")),
      freeBelow: on.includes("free") ? Number(this.find(".free-below").value) : null,
      steps: on.includes("request") && events ? new Set(events.map(([step]) => step)) : null,
    };
  }

  requestEvents() {
    return this.request === null ? null : this.store.requests.get(`r:${this.request}`)?.events;
  }

  toBlockEvent(direction) {
    const steps = this.block === null
      ? (this.requestEvents() ?? []).map(([step]) => step)
      : (this.store.blockFacts(this.block, this.step)?.events ?? []).map(([step]) => step);
    const to = direction > 0 ? steps.find((step) => step > this.step) : steps.findLast((step) => step < this.step);
    if (to === undefined) this.find(".notice").textContent = `no ${direction > 0 ? "later" : "earlier"} event of the selection`;
    else this.goTo(to);
  }

  moveCursor(right, down) {
    this.cursor = this.cursor === null ? (this.block ?? 0) : moved(this.map.grid, this.map.numBlocks, this.cursor, right, down);
    this.drawMap();
    this.find(".notice").textContent = `cursor on block ${this.cursor}`;
  }

  select(changes) {
    Object.assign(this, changes);
    if (changes.block !== undefined && changes.block !== null) this.cursor = changes.block;
    if (changes.request !== undefined) this.find(".find").value = changes.request ?? "";
    this.find(".why").textContent = "";
    this.refresh();
    this.report();
  }

  // ---------------------------------------------------------------- playing

  play() {
    if (this.step >= this.last) this.step = 0;
    this.playing = true;
    this.root.classList.add("playing");
    this.find(".play").textContent = "⏸ pause";
    let since = performance.now(), owed = 0;
    const frame = (now) => {
      if (!this.playing) return;
      owed += ((now - since) / 1000) * this.rate;
      since = now;
      const steps = Math.min(Math.floor(owed), 10);
      owed -= Math.floor(owed);
      if (steps > 0 && this.canShow(this.step + steps)) this.playOn(steps);
      if (this.playing) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  playOn(steps) {
    const target = Math.min(this.step + steps, this.last);
    const { step, stopped } = playTo(this.store.figures, this.breaks(), this.step, target);
    this.step = step;
    if (stopped || step >= this.last) {
      this.pause();
      if (stopped) this.sayWhyStopped();
    }
    this.refresh();
  }

  /** Whether its window is loaded; playback waits for it. */
  canShow(step) {
    if (this.store.frames(Math.min(step, this.last))) return true;
    this.ask();
    return false;
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.root.classList.remove("playing");
    this.find(".play").textContent = "▶ play";
    this.refresh();
    this.report();
  }

  get rate() {
    return Number(this.find(".rate").value);
  }

  // ---------------------------------------------------------------- showing

  layOut() {
    const width = this.root.clientWidth;
    if (!width || !this.store?.ready) return;
    this.map.resize(this.head.num_blocks, this.find(".map-frame").clientWidth, MAP_HEIGHT);
    this.timeline.prepare(this.store.figures, this.find(".steps").clientWidth, this.range);
    this.find('[data-command="whole"]').hidden = this.range === null;
  }

  refresh() {
    if (this.taking) return;
    if (!this.store?.ready || !this.map.grid) return this.ask();
    this.showPosition();
    this.drawMap();
    this.timeline.draw(this.step, this.brush);
    const now = performance.now();
    if (!(this.playing || this.walking) || now - (this.tablesAt ?? 0) > TABLES_MS) {
      this.tablesAt = now;
      this.showTables();
    }
    this.ask();
  }

  showPosition() {
    const { figures } = this.store;
    this.root.dataset.step = this.step;
    this.find(".now").textContent = `step ${number(this.step)}`;
    this.find(".last").textContent = ` / ${number(this.last)}`;
    const budget = this.head.budget, spent = figures.tokens[this.step];
    this.find(".spent").textContent = budget ? `${number(spent)} / ${number(budget)} tokens` : `${number(spent)} tokens`;
    this.find(".track i").style.width = budget ? `${Math.min(100, (100 * spent) / budget)}%` : "0";
    this.find(".track").hidden = !budget;
    this.find(".batch-size").textContent = `${number(figures.running[this.step])} running`;
    this.find(".queue-size").textContent = number(figures.waiting[this.step]);
    const slider = this.find(".timeline");
    slider.setAttribute("aria-valuemax", this.last);
    slider.setAttribute("aria-valuenow", this.step);
  }

  drawMap() {
    const frames = this.store.frames(this.step);
    this.root.dataset.map = frames ? "ready" : "loading";
    if (!frames) return;
    const states = frames.at(this.step), changed = frames.changed(this.step);
    const table = this.request === null ? null : this.state?.tables.get(this.request);
    const own = this.state?.step === this.step && table ? new Set(table) : null;
    this.map.draw(states, { changed, own, block: this.block, cursor: this.cursor });
    const [free, cached, used, shared] = countStates(states);
    const counts = { free, cached, used, shared, changed: changed.length };
    for (const [name, count] of Object.entries(counts)) this.find(`[data-count="${name}"]`).textContent = number(count);
    const chosen = this.block === null ? "" : `, selected block ${this.block}`;
    const label = `step ${this.step}, ${number(used + shared)} of ${number(states.length - 1)} used, ${number(cached)} cached${chosen}`;
    this.find(".map").setAttribute("aria-label", label);
  }

  showTables() {
    const state = (this.state = stepState(this.store.chunk(this.step), this.step));
    this.root.dataset.details = state ? "ready" : "loading";
    const frames = this.store.frames(this.step);
    if (state) {
      this.find(".sentence").textContent = state.sentence;
      fillSource(this.find(".source"), state.source);
      this.speak(state.sentence);
      const most = mostRows(this.playing, this.allRows);
      fillBatch(this.find(".batch tbody"), state, this.request, most);
      fillQueue(this.find(".waiting tbody"), state, this.request, most);
      fillEvents(this.find(".events"), state);
      this.drawMap();
    }
    const facts = this.block === null ? null : this.store.blockFacts(this.block, this.step);
    if (frames) fillBlockFacts(this.find(".block-facts"), this.block, frames.at(this.step), state, facts, this.step);
    fillRequestFacts(this.find(".request-facts"), this.request, state, this.requestEvents());
    this.showWhy();
    if (!this.playing && this.find("details.text").open) this.showText();
  }

  showText() {
    const frames = this.store.frames(this.step);
    if (frames) this.find(".state").textContent = stateText(this.store.figures, frames.at(this.step), this.state, this.step);
  }

  showWhy() {
    const answer = this.whyKey && this.store.answers.get(this.whyKey);
    if (answer && answer.step === this.step) this.find(".why").textContent = answer.sentence;
    else if (answer) this.find(".why").textContent = "";
  }

  /** For screen readers: at most one sentence a second, none while playing. */
  speak(sentence) {
    clearTimeout(this.speakTimer);
    if (this.playing) return;
    const wait = Math.max(0, SPEAK_MS - (performance.now() - (this.spokeAt ?? -SPEAK_MS)));
    this.speakTimer = setTimeout(() => {
      this.spokeAt = performance.now();
      this.find(".spoken").textContent = `Step ${this.step}. ${sentence}`;
    }, wait);
  }

  look(range) {
    this.range = range;
    this.layOut();
    this.find(".range").textContent = range ? `steps ${number(range[0])} to ${number(range[1] - 1)}` : "";
    this.refresh();
  }

  // ---------------------------------------------------------------- talking to Python

  ask(extra = null) {
    if (!this.store || this.taking) return;
    const ahead = this.playing ? Math.max(PREFETCH_STEPS, Math.ceil(this.rate)) : 2;
    const wanted = this.store.missing(this.step, ahead, this.block, this.request);
    if (extra) wanted.push(extra);
    if (!wanted.length || (this.isWaiting && !extra)) return;
    this.asked = { at: performance.now(), sequence: ++this.sequence };
    this.send({ need: wanted, sequence: this.sequence });
    clearTimeout(this.askTimer);
    this.askTimer = setTimeout(() => this.ask(), ASK_AGAIN_MS + 50);
  }

  get isWaiting() {
    return this.asked !== null && performance.now() - this.asked.at < ASK_AGAIN_MS;
  }

  /** Report the view's position to Python. Not while a question is open: of two messages that arrive while
   *  it is busy, it reads the second. */
  report() {
    clearTimeout(this.reportTimer);
    if (this.playing || this.told === this.place) return;
    this.reportTimer = setTimeout(() => (this.isWaiting ? this.report() : this.send({ rest: true })), REPORT_MS);
  }

  get place() {
    return JSON.stringify([this.step, this.request, this.block]);
  }

  send(message) {
    clearTimeout(this.reportTimer);
    const { step, request, block } = this;
    this.told = this.place;
    this.say({ run: this.store.run, step, request, block, ...message });
  }

  // ---------------------------------------------------------------- user input

  listen() {
    const { signal } = this.listeners;
    const on = (target, kind, handler, options = {}) => target.addEventListener(kind, handler, { signal, ...options });
    on(document, "keydown", (event) => this.onKey(event));
    on(this.root, "click", (event) => this.onClick(event));
    on(this.find(".map"), "click", (event) => this.select({ block: this.blockUnder(event) }));
    on(this.find(".map"), "mousemove", (event) => (this.find(".map").title = this.hint(this.blockUnder(event))));
    on(this.find(".rate"), "input", () => (this.find(".speed output").textContent = `${this.rate}/s`));
    on(this.find(".find"), "change", (event) => this.findRequest(event.target.value.trim()));
    on(this.find(".find"), "keydown", (event) => event.key === "Escape" && event.target.blur());
    on(this.find(".find"), "focus", () => this.offerRequests());
    on(this.find("details.text"), "toggle", () => this.store?.ready && this.showText());
    on(this.find(".follow input"), "change", () => this.refresh());
    this.listenToTimeline(on);
    this.observer = new ResizeObserver(() => {
      this.layOut();
      this.refresh();
    });
    this.observer.observe(this.root);
    for (const [kind, colour] of TICKS) {
      this.find(".ticks").append(el("span", {}, el("i", { style: `background:${colour}` }), kind));
    }
  }

  listenToTimeline(on) {
    const canvas = this.find(".timeline");
    const stepOf = (event) => this.timeline.stepAt(event.offsetX);
    on(canvas, "pointerdown", (event) => {
      if (!this.store?.ready) return;
      canvas.setPointerCapture(event.pointerId);
      this.pause();
      this.drag = { strip: this.timeline.isStrip(event.offsetY) || event.shiftKey, from: stepOf(event) };
      if (!this.drag.strip) this.goTo(this.drag.from);
    });
    on(canvas, "pointermove", (event) => {
      if (!this.drag) return;
      if (!this.drag.strip) return this.goTo(stepOf(event));
      this.brush = [this.drag.from, stepOf(event)];
      this.timeline.draw(this.step, this.brush);
    });
    on(canvas, "pointerup", (event) => {
      const drag = this.drag;
      this.drag = this.brush = null;
      if (!drag?.strip) return;
      const [first, last] = [drag.from, stepOf(event)].sort((a, b) => a - b);
      if (last - first < 2) this.goTo(first);
      else this.look([first, last + 1]);
    });
  }

  onKey(event) {
    const target = event.composedPath()[0];
    if (!this.root.isConnected) return;
    if (this.find("dialog").open) return event.key === "?" ? this.toggleKeys() : undefined;
    if (target === this.find(".timeline") && event.key.startsWith("Arrow")) {
      event.preventDefault();
      return this.command("step", ["ArrowLeft", "ArrowDown"].includes(event.key) ? -1 : 1);
    }
    const isOurs = target === document.body || target === document.documentElement || this.root.contains(target);
    const command = commandOf(event, target);
    if (!command || (!isOurs && ["cursor", "pick", "play"].includes(command[0]))) return;
    event.preventDefault();
    this.command(...command);
  }

  onClick(event) {
    const button = event.target.closest("button");
    if (!button) return;
    const { command, request, why, all, stepTo } = button.dataset;
    if (command) this.command(...command.split(" "));
    else if (request !== undefined) this.select({ request: request === this.request ? null : request });
    else if (why !== undefined) this.askWhy(why);
    else if (stepTo !== undefined) this.goTo(Number(stepTo));
    else if (all !== undefined) {
      this.allRows = true;
      this.showTables();
    }
  }

  askWhy(request) {
    this.whyKey = `y:${this.step}:${request}`;
    if (this.store.answers.has(this.whyKey)) this.showWhy();
    else this.ask(this.whyKey);
  }

  findRequest(name) {
    this.select({ request: name || null });
    if (name) this.find(".find").blur();
  }

  offerRequests() {
    const names = new Set();
    for (const chunk of this.store?.chunks.values() ?? []) for (const [name] of chunk.stays) names.add(name);
    this.find("datalist").replaceChildren(...[...names].slice(0, 300).map((value) => el("option", { value })));
  }

  blockUnder(event) {
    return this.map.grid ? blockAt(this.map.grid, this.map.numBlocks, event.offsetX, event.offsetY) : null;
  }

  hint(block) {
    const frames = this.store?.frames(this.step);
    if (block === null || !frames) return "";
    return `block ${block}: ${["free", "cached, free", "used", "shared"][frames.at(this.step)[block]]}`;
  }

  showKeys() {
    this.find("dialog table").replaceChildren(...KEYS.map(([key, what]) => el("tr", {}, el("th", {}, key), el("td", {}, what))));
  }

  toggleKeys() {
    const dialog = this.find("dialog");
    dialog.open ? dialog.close() : dialog.showModal();
  }
}
