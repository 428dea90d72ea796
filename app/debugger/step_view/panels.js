// The tables and lines next to the block map, as DOM. Data from a trace is set as text, never as markup.

import { figuresText, ownersOf, ranges, reasonOf, slotUsers } from "./step_state.js";
import { colourOf, GREY, markOf } from "./theme.js";

const ROWS_SHOWN = 60, ROWS_IN_PLAY = 20;
/** During playback fewer rows are drawn: they cost the most time, and the table cannot be scrolled anyway. */

export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element && key !== "style") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button with a request's id that selects it. look: for a swatch before it, with the number of its colour. */
function nameButton(name, selected, look = null) {
  const swatch = look === null || look === undefined ? null : el("i", { className: "swatch", style: ownColour(look) }, markOf(look));
  return el("button", { className: "name", "data-request": name, "aria-pressed": String(name === selected), title: name }, swatch, name);
}

function ownColour(look) {
  return look === undefined || look === GREY ? "" : `--own: var(--request-${colourOf(look)})`;
}

export function fillBatch(body, state, selected, most) {
  const admitted = new Map(state.admitted), resumed = new Map(state.resumed);
  const scheduled = (row) => {
    const found = admitted.get(row.request) ?? resumed.get(row.request);
    const mark = admitted.has(row.request) ? "new" : resumed.has(row.request) ? "resumed" : "";
    const phase = [row.phase, mark && ` ${mark}`, found ? ` +${found} hit` : ""].join("");
    return tableRow(row, selected, [
      phase, number(row.tokens), `${number(row.computed)} / ${number(row.total)}`,
      row.runs ? number(row.blocks) : "–", row.text || "–",
    ], row.phase, state.looks.get(row.request), row.made.join(" "));
  };
  const idle = (row) => tableRow(row, selected, [
    (reasonOf(state, row.request) ?? ["–"])[0], "0", `${number(row.computed)} / ${number(row.total)}`, number(row.blocks), "–",
  ], "idle", state.looks.get(row.request));
  const make = (row) => (row.phase ? scheduled(row) : idle(row));
  fill(body, [...state.rows, ...state.idle], make, most, 6);
}

function tableRow(row, selected, [phase, tokens, progress, blocks, output], kind, look, ids = "") {
  const style = ownColour(look);
  return el("tr", { className: `${kind}${row.request === selected ? " selected" : ""}`, style },
    el("td", {}, nameButton(row.request, selected, look)), el("td", { title: phase }, phase), el("td", { className: "n" }, tokens),
    el("td", { className: "n" }, progress), el("td", { className: "n" }, blocks),
    el("td", { className: "output", title: ids ? `token ${ids}` : "" }, output));
}

export function fillQueue(body, state, selected, most) {
  const waiting = (name, at) => {
    const reason = reasonOf(state, name);
    return el("tr", { className: name === selected ? "selected" : "" },
      el("td", { className: "n" }, `${at + 1}`), el("td", {}, nameButton(name, selected, state.looks.get(name))),
      el("td", { className: "reason" }, reason ? reason[0] : "arrived during the step"),
      el("td", {}, reason ? [needs(state, name, reason), figuresText(reason)].filter(Boolean).join(", ") : ""),
      el("td", {}, el("button", { className: "link", "data-why": name, title: `Why does ${name} wait?` }, "why?")));
  };
  fill(body, state.queue, waiting, most, 5);
  const behind = state.waiting - state.queue.length;
  if (behind > 0) body.append(el("tr", {}, el("td", { colSpan: 5 }, `and ${number(behind)} more`)));
}

/** The adapter that a request without a slot waits for. */
function needs(state, name, [reason]) {
  return reason === "no_lora_slot" && state.adapters.has(name) ? `needs ${state.adapters.get(name)}` : "";
}

/** "ADAPTER SLOTS 1 of 2 in use", and who uses each. slots: their number; 0 or undefined hides the line. */
export function fillSlots(element, state, slots, selected) {
  element.hidden = !slots || !(state?.adapters.size ?? 0);
  if (element.hidden) return;
  const users = slotUsers(state);
  const each = ([adapter, names]) => el("span", {}, el("code", {}, adapter), " for ", ...names.flatMap((name) => [nameButton(name, selected, state.looks.get(name)), " "]));
  element.replaceChildren("ADAPTER SLOTS ", el("b", {}, `${number(users.length)} of ${number(slots)} in use`), ...users.flatMap((one) => [" · ", each(one)]));
}

/** How many rows of a table to draw. */
export function mostRows(playing, all) {
  return playing ? ROWS_IN_PLAY : all ? Infinity : ROWS_SHOWN;
}

function fill(body, entries, make, most, columns) {
  const rows = entries.slice(0, most).map(make);
  if (entries.length > most) {
    const more = el("button", { className: "link", "data-all": "1" }, `${counted(entries.length - most, "more row")}`);
    rows.push(el("tr", {}, el("td", { colSpan: columns }, more)));
  }
  body.replaceChildren(...rows);
}

/** The line of the scheduler that decided: [place, code, what it decides, caveat]. */
export function fillSource(element, source) {
  const parts = source ? [el("span", { className: "place" }, source[0]), " ", el("code", {}, source[1]), " ", el("span", {}, source[2]), source[3] ? el("span", { className: "note" }, ` · ${source[3]}`) : null] : [];
  element.replaceChildren(...parts.filter((part) => part !== null));
}

/** Arrivals, ends, and preemptions with their costs, one line each. isAsking: without what later steps show. */
export function fillEvents(element, state, isAsking = false) {
  const lines = [];
  const known = (cost) => (isAsking ? { ...cost, waited: null, ended: null } : cost);
  for (const cost of state.preempted) lines.push(["preempted", costText(known(cost)), "preempt"]);
  for (const [name, found] of state.resumed) lines.push(["resumed", `${name}${found ? `, ${counted(found, "token")} cached` : ", no prefix cached"}`, "resume"]);
  for (const [name, found] of state.admitted) lines.push(["admitted", `${name}${found ? `, prefix hit of ${counted(found, "token")}` : ""}`, "admit"]);
  for (const [name, reason] of state.finished) lines.push(["finished", `${name} (${reason})`, "finish"]);
  for (const name of state.added) lines.push(["arrived", name, "add"]);
  for (const name of state.aborted) lines.push(["aborted", name, "abort"]);
  if (state.copyOut.length) lines.push(["to host", `${pairs(state.copyOut)}`, "copy"]);
  if (state.copyIn.length) lines.push(["from host", `${pairs(state.copyIn)}`, "copy"]);
  element.replaceChildren(...lines.map(([what, text, kind]) => el("div", { className: `event ${kind}` }, el("b", {}, what), ` ${text}`)));
}

function pairs(copies) {
  return `${counted(copies.length, "block")}: ${copies.slice(0, 12).map(([from, to]) => `${from}→${to}`).join(" ")}${copies.length > 12 ? " …" : ""}`;
}

export function costText(cost) {
  const shared = cost.shared ? ` (${number(cost.shared)} of them still held by others)` : "";
  const lost = `${cost.request} released ${counted(cost.blocks, "block")}${shared} with ${counted(cost.computed, "computed token")}`;
  if (cost.waited === null) return `${lost}; it has not resumed${cost.ended === null ? " yet" : ""}`;
  return `${lost}; resumed after ${counted(cost.waited, "step")}, ${counted(cost.found, "token")} cached, ${number(cost.again)} recomputed`;
}

/** isAsking: a question about the step is open, so later events are left out. */
export function fillBlockFacts(element, block, states, state, facts, step, isAsking = false) {
  if (block === null) {
    element.replaceChildren(el("span", { className: "quiet" }, "no block selected: click one, or move the cursor and press Enter"));
    return;
  }
  const parts = [el("b", {}, `block ${number(block)}`)];
  if (block === 0) {
    element.replaceChildren(...parts, " is the null block: it is never allocated");
    return;
  }
  parts.push(` ${["empty", "cached, free", "used", "shared"][states[block]]}`);
  if (state) {
    const owners = ownersOf(state, block);
    parts.push(` · ref ${owners.length}`);
    if (owners.length) parts.push(" · held by ", ...owners.slice(0, 8).flatMap((name) => [nameButton(name, null, state.looks.get(name)), " "]));
    if (owners.length > 8) parts.push(`and ${owners.length - 8} more`);
  }
  if (facts) {
    const hash = lastAt(facts.hashes, step)?.[1];
    parts.push(` · ${hash ? `hash ${hash}` : "no hash published"}`);
    const near = facts.events.filter(([when]) => when <= step).slice(-6);
    const list = near.map(([when, kind, request]) => el("button", { className: `link${when === step ? " now" : ""}`, "data-step-to": when }, `${when} ${kind}${request ? ` ${request}` : ""}`));
    const all = facts.events.filter(([when]) => when <= step).length, last = near.length < all ? `last ${near.length} of ` : "";
    parts.push(el("div", { className: "history" }, `${last}${counted(isAsking || last ? all : facts.events.length, "event")}${last ? " so far" : ""}${facts.whole ? "" : ` in steps ${facts.first}-${facts.last - 1}`}: `, ...list.flatMap((item) => [item, " "]), near.length ? "" : "none yet"));
  }
  element.replaceChildren(...parts);
}

export function fillRequestFacts(element, request, state, events) {
  if (request === null) {
    element.replaceChildren();
    return;
  }
  const parts = [el("b", {}, request)];
  const table = state?.tables.get(request);
  if (table) parts.push(` runs · ${counted(table.length, "block")}: `, el("span", { className: "ids" }, ranges(table)));
  else if (state?.queue.includes(request)) parts.push(" waits; it holds no blocks");
  else if (state) parts.push(" holds no blocks after this step");
  const adapter = state?.adapters.get(request);
  if (adapter) parts.push(` · adapter ${adapter}`);
  if (events?.length) {
    const list = events.slice(0, 40).flatMap(([when, kind]) => [el("button", { className: "link", "data-step-to": when }, `${when} ${kind}`), " "]);
    parts.push(el("div", { className: "history" }, ...list));
  }
  element.replaceChildren(...parts);
}

export function lastAt(entries, step) {
  let found = null;
  for (const entry of entries) {
    if (entry[0] > step) break;
    found = entry;
  }
  return found;
}

const DIGITS = new Intl.NumberFormat("en");
/** Shared, because creating one takes longer than formatting all numbers of a picture. */

export function number(value) {
  return value < 1000 ? `${value}` : DIGITS.format(value);
}

/** "1 block", "2 blocks". */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}
