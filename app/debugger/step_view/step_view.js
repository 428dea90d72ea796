// The page Step: one object per mounted component. It caches the parts it received, moves through the run on its own,
// and contacts Python only to fetch missing parts and to report its final position.

import { EVENT_BITS, playTo, nextStop, stopsAt } from "./breaks.js";
import { countStates } from "./frames.js";
import { commandOf, KEYS } from "./keys.js";
import { Lanes, lanesAt } from "./lanes.js";
import { givenUp, neighbours, Owners } from "./owners.js";
import { BlockMap, blockAt, GLYPHS_UP_TO, hasText, moved } from "./block_map.js";
import { el, fillBatch, fillBlockFacts, fillEvents, fillQueue, fillRequestFacts, fillSlots, fillSource, mostRows, number } from "./panels.js";
import { ownersOf, stateText, stepState, textIn } from "./step_state.js";
import { openEnvelope, Store } from "./store.js";
import { markOf, themeOf } from "./theme.js";
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
const MAP_HEIGHT = 330, LARGE_MAP_HEIGHT = 520;
/** Of a map with glyphs, so that the lanes are on the same screen, and of a larger one. */
const PULSE_MS = 450, REVEAL_MS = 900;
/** Of the changes of a step, and of each step that answers a question. */
const REVEALED_STEPS = 8;
/** Steps that are shown one by one on the way to an answer. */
const STATES = ["empty", "cached, free", "used", "shared"];

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
    this.lanes = new Lanes(this.find(".lanes"), this.timeline);
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
    clearInterval(this.revealTimer);
    this.pause();
    clearTimeout(this.reportTimer);
    clearTimeout(this.askTimer);
  }

  // ---------------------------------------------------------------- messages from Python

  async receive(component) {
    this.say = (value) => component.setTriggerValue("say", value);
    const { head, parts } = openEnvelope(new Uint8Array(component.data));
    if (this.store?.run !== head.run) this.begin(head);
    const asked = this.isAsking;
    this.head = head;
    this.root.dataset.live = head.live;
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
    if (head.jump.id !== this.jump) this.adopt(head.jump, asked && head.hidden_after === null);
    if (head.notice !== undefined) this.find(".notice").textContent = head.notice;
    if (parts.has("o")) this.figuresChanged();
    if (Number.isInteger(head.leaving)) return this.send({ fork: head.leaving, still: true });
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
    this.find('[data-command="fork"]').textContent = head.run.startsWith("live:") ? "Save and fork here" : "fork here…";
  }

  /** Go to the place set by another page, a permalink or a panel. */
  adopt({ id, step, request, block }, isAnswer = false) {
    this.jump = id;
    clearInterval(this.revealTimer);
    this.revealing = false;
    const from = this.step;
    Object.assign(this, { step, request, block });
    this.told = this.place;
    if (isAnswer && step > from && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.reveal(from, step);
    if (block !== null) this.cursor = block;
    this.find(".find").value = request ?? "";
  }

  /** Show the steps of an answer one by one, each with its changes. */
  reveal(from, to) {
    this.revealing = true;
    this.step = Math.max(from, to - REVEALED_STEPS) + 1;
    this.revealTimer = setInterval(() => {
      this.step = Math.min(this.step + 1, to);
      if (this.step === to) clearInterval(this.revealTimer);
      this.refresh();
      if (this.step === to) setTimeout(() => (this.revealing = false), REVEAL_MS);
    }, REVEAL_MS);
  }

  /** Whether a question about the current step is open, or answered and the next one would be about it. */
  get isAsking() {
    return this.head !== undefined && [this.head.hidden_after, this.head.answered].includes(this.step);
  }

  figuresChanged() {
    if (!this.store.ready) return;
    this.step = Math.max(0, Math.min(this.step, this.last));
    this.layOut();
  }

  follow() {
    if (!this.follows || !this.store.ready) return;
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
    clearInterval(this.revealTimer);
    this.revealing = false;
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
    else if (name === "zoom") this.zoom(a);
  }

  toBreak(direction) {
    if (this.head.live) {
      this.find(".notice").textContent = "the breakpoints of a live run are those of its engine, on the page Live";
      return;
    }
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

  /** The breakpoints of playback. A live run has none: those of its engine, on the page Live, are the only list. */
  breaks() {
    const on = this.head.live ? [] : [...this.root.querySelectorAll("[data-break]:checked")].map((box) => box.dataset.break);
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
    const theme = (this.map.theme = themeOf(this.root));
    this.map.resize(this.head.num_blocks, this.find(".map-frame").clientWidth, this.head.num_blocks > GLYPHS_UP_TO ? LARGE_MAP_HEIGHT : MAP_HEIGHT);
    this.timeline.prepare(this.store.figures, this.find(".steps").clientWidth, this.range, theme);
    this.find('[data-command="whole"]').hidden = this.range === null;
  }

  refresh() {
    if (this.taking) return;
    if (!this.store?.ready || !this.map.grid) return this.ask();
    this.showPosition();
    this.drawMap();
    const hidden = this.isAsking ? this.step + 1 : null;
    this.root.dataset.hidden = hidden ?? "";
    this.timeline.draw(this.step, this.brush, hidden);
    this.lanes.draw(lanesAt(this.store.chunk(this.step), this.step, this.request, this.isAsking), this.step, this.request, hidden);
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
    const before = !this.playing && frames.has(this.step - 1) ? countStates(frames.at(this.step - 1)) : null;
    const states = frames.at(this.step), hits = this.hits(), chunk = this.store.chunk(this.step);
    const given = chunk ? givenUp(chunk, this.step) : new Map();
    const changed = [...new Set([...frames.changed(this.step), ...given.keys()])];
    const table = this.request === null ? null : this.state?.tables.get(this.request);
    const own = this.state?.step === this.step && table ? new Set(table) : null;
    this.map.draw(states, this.owners(), { texts: this.texts(states), changed, given, hits, own, block: this.block, cursor: this.cursor, pulse: this.pulse() });
    const now = countStates(states), [free, cached, used, shared] = now;
    const living = this.state ? [...this.state.running, ...this.state.queue] : [];
    this.find(".marks").hidden = !living.some((name) => markOf(this.state.looks.get(name) ?? 0));
    const counts = { free, cached, used, shared, changed: changed.length, given: given.size, hits: hits.length };
    for (const [name, count] of Object.entries(counts)) this.find(`[data-count="${name}"]`).textContent = number(count);
    ["free", "cached", "used", "shared"].forEach((name, i) => {
      const differs = before !== null && before[i] !== now[i];
      this.find(`[data-was="${name}"]`).textContent = differs ? ` was ${number(before[i])}` : "";
    });
    const chosen = this.block === null ? "" : `, selected block ${this.block}`;
    const label = `step ${this.step}, ${number(used + shared)} of ${number(states.length - 1)} used, ${number(cached)} cached${chosen}`;
    this.find(".map").setAttribute("aria-label", label);
  }

  /** The text in each block, where cells have room for it; null without it. */
  texts(states) {
    const chunk = this.store.chunk(this.step), state = this.state?.step === this.step ? this.state : null;
    if (!state || !hasText(this.map.grid, chunk)) return null;
    return Array.from(states, (_, block) => textIn(chunk, state, states, block, this.head.block_size));
  }

  /** The owners of all blocks in this step; null until its details have arrived. With a selected request, those that
   *  share no block with it are grey. */
  owners() {
    const chunk = this.store.chunk(this.step);
    if (!chunk) return null;
    if (this.allOwners?.counts.length !== this.head.num_blocks) this.allOwners = new Owners(this.head.num_blocks);
    const state = this.state?.step === this.step ? this.state : null;
    const focus = this.request !== null && state?.tables.has(this.request) ? neighbours(state.tables, this.request) : null;
    return this.allOwners.look(chunk, this.step, focus);
  }

  /** Blocks that requests found in the prefix cache when they began in this step. */
  hits() {
    const state = this.state?.step === this.step ? this.state : null;
    if (!state) return [];
    return [...state.admitted, ...state.resumed].flatMap(([name, found]) => (state.tables.get(name) ?? []).slice(0, Math.floor(found / this.head.block_size)).filter(Boolean));
  }

  /** Progress of the animation of the step's changes, from 0 to 1. It begins when the step has changed. */
  pulse() {
    if (this.playing || this.walking || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.pulsed = this.step;
      return 1;
    }
    if (this.pulsed !== this.step) {
      this.pulsed = this.step;
      this.pulseAt = performance.now();
      this.pulseMs = this.revealing ? REVEAL_MS : PULSE_MS;
      const on = () => {
        if (!this.root.isConnected || this.pulseAt === null) return;
        this.drawMap();
        if (performance.now() - this.pulseAt < this.pulseMs) requestAnimationFrame(on);
      };
      requestAnimationFrame(on);
    }
    return Math.min(1, (performance.now() - this.pulseAt) / this.pulseMs);
  }

  showTables() {
    const state = (this.state = stepState(this.store.chunk(this.step), this.step));
    this.root.dataset.details = state ? "ready" : "loading";
    const frames = this.store.frames(this.step);
    if (state) {
      const told = this.isAsking ? state.soFar : state.sentence;
      this.find(".sentence").textContent = told;
      fillSource(this.find(".source"), state.source);
      this.speak(told);
      const most = mostRows(this.playing, this.allRows);
      fillBatch(this.find(".batch tbody"), state, this.request, most);
      fillSlots(this.find(".slots"), state, this.head.slots, this.request);
      fillQueue(this.find(".waiting tbody"), state, this.request, most);
      fillEvents(this.find(".events"), state, this.isAsking);
      this.drawMap();
    }
    const facts = this.block === null ? null : this.store.blockFacts(this.block, this.step);
    if (frames) fillBlockFacts(this.find(".block-facts"), this.block, frames.at(this.step), state, facts, this.step, this.isAsking);
    const events = this.requestEvents();
    fillRequestFacts(this.find(".request-facts"), this.request, state, this.isAsking ? events?.filter(([when]) => when <= this.step) : events);
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

  /** Show 1 / factor of the steps shown now, around the current one. */
  zoom(factor) {
    const [first, last] = this.timeline.range;
    const count = Math.round((last - first) / factor), from = Math.round(this.step - count / 2);
    if (count < 4) return;
    if (count >= this.last + 1) return this.look(null);
    const begin = Math.max(0, Math.min(from, this.last + 1 - count));
    this.look([begin, begin + count]);
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
    return JSON.stringify([this.step, this.request, this.block, this.follows]);
  }

  get follows() {
    return this.head.live && this.find(".follow input").checked;
  }

  send(message) {
    clearTimeout(this.reportTimer);
    const { step, request, block } = this;
    this.told = this.place;
    this.say({ run: this.store.run, step, request, block, follows: this.follows, ...message });
  }

  // ---------------------------------------------------------------- user input

  listen() {
    const { signal } = this.listeners;
    const on = (target, kind, handler, options = {}) => target.addEventListener(kind, handler, { signal, ...options });
    on(document, "keydown", (event) => this.onKey(event));
    on(this.root, "click", (event) => this.onClick(event));
    on(this.find(".map"), "click", (event) => this.select({ block: this.blockUnder(event) }));
    on(this.find(".map"), "mousemove", (event) => this.tip(event, this.hint(this.blockUnder(event))));
    on(this.find(".timeline"), "mousemove", (event) => this.tip(event, this.stepHint(this.timeline.stepAt(event.offsetX))));
    on(this.find(".lanes"), "mousemove", (event) => this.tip(event, this.laneHint(event)));
    for (const canvas of [".map", ".timeline", ".lanes"]) on(this.find(canvas), "mouseleave", () => this.tip(null, ""));
    on(this.find(".lanes"), "click", (event) => this.toLane(event));
    on(this.find(".rate"), "input", () => (this.find(".speed output").textContent = `${this.rate}/s`));
    on(this.find(".find"), "change", (event) => this.findRequest(event.target.value.trim()));
    on(this.find(".find"), "keydown", (event) => event.key === "Escape" && event.target.blur());
    on(this.find(".find"), "focus", () => this.offerRequests());
    on(this.find("details.text"), "toggle", () => this.store?.ready && this.showText());
    on(this.find(".follow input"), "change", () => (this.refresh(), this.report()));
    this.listenToTimeline(on);
    const redraw = () => {
      this.layOut();
      this.refresh();
    };
    this.observer = new ResizeObserver(redraw);
    this.observer.observe(this.root);
    on(matchMedia("(prefers-color-scheme: light)"), "change", redraw);
    on(this.find(".steps"), "wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** Ctrl and the wheel zoom around the pointer's step, Shift and the wheel move the range. */
  onWheel(event) {
    if (!this.store?.ready || !(event.ctrlKey || event.shiftKey)) return;
    event.preventDefault();
    const [first, last] = this.timeline.range, count = last - first;
    if (event.ctrlKey) {
      const wide = Math.min(this.last + 1, Math.max(4, Math.round(count * (event.deltaY > 0 ? 1.25 : 0.8))));
      const at = this.timeline.stepAt(event.offsetX), from = Math.round(at - ((at - first) / count) * wide);
      const begin = Math.max(0, Math.min(from, this.last + 1 - wide));
      return this.look(wide > this.last ? null : [begin, begin + wide]);
    }
    const by = Math.sign(event.deltaY || event.deltaX) * Math.max(1, Math.round(count / 10));
    const begin = Math.max(0, Math.min(first + by, this.last + 1 - count));
    this.look([begin, begin + count]);
  }

  toLane(event) {
    const lane = this.lanes.laneAt(event.offsetY);
    if (!lane) return;
    this.select({ request: lane[0] });
    this.goTo(this.timeline.stepAt(event.offsetX));
  }

  /** Show a text next to the pointer; "" hides it. */
  tip(event, text) {
    const tip = this.find(".tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = this.root.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    tip.style.left = `${x > box.width / 2 ? x - tip.offsetWidth - 12 : x + 14}px`;
    tip.style.top = `${y + 16}px`;
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
    if (!command || (!isOurs && (event.key.startsWith("Arrow") || ["pick", "play"].includes(command[0])))) return;
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
    if (!block) return "block 0 is the null block: it is never allocated";
    const state = this.state?.step === this.step ? this.state : null;
    const lines = [`block ${block}: ${STATES[frames.at(this.step)[block]]}`];
    const size = this.head.block_size, owners = state ? ownersOf(state, block) : [];
    for (const name of owners.slice(0, 6)) {
      const place = state.tables.get(name).indexOf(block);
      lines.push(`${name}: tokens ${place * size} to ${place * size + size - 1}`);
    }
    if (owners.length > 6) lines.push(`and ${owners.length - 6} more`);
    const text = state ? textIn(this.store.chunk(this.step), state, frames.at(this.step), block, size) : "";
    if (text) lines.push(text);
    return lines.join("\n");
  }

  /** Whether an open question about the current step hides a later one. */
  isHidden(step) {
    return this.isAsking && step > this.step;
  }

  laneHint(event) {
    const step = this.timeline.stepAt(event.offsetX);
    return this.store?.ready && !this.isHidden(step) ? this.lanes.hint(event.offsetY, step, this.isAsking ? this.step : null) : "";
  }

  stepHint(step) {
    if (!this.store?.ready) return "";
    if (this.isHidden(step)) return `step ${number(step)}: hidden during the quiz`;
    const { figures } = this.store;
    const events = TICKS.map(([kind]) => kind).filter((kind) => figures.events[step] & (1 << EVENT_BITS.indexOf(kind)));
    const counts = ["running", "waiting", "free", "tokens"].map((name) => `${name} ${number(figures[name][step])}`);
    return [`step ${number(step)}`, counts.join(", "), events.join(", ")].filter(Boolean).join("\n");
  }

  showKeys() {
    this.find("dialog table").replaceChildren(...KEYS.map(([key, what]) => el("tr", {}, el("th", {}, key), el("td", {}, what))));
  }

  toggleKeys() {
    const dialog = this.find("dialog");
    dialog.open ? dialog.close() : dialog.showModal();
  }
}
