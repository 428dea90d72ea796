// What the page Mock does in the browser: keep drafts through a reload, put the focus into a new turn, count words,
// indent in the editor. Drafts are kept in this browser only, until their turn is answered.
//
//   data = { session, turn, panel: class of the turn's panel, first: selector of what gets the focus,
//            draft: key of the draft, fields: selector of what it keeps }

let shown = "";

const storeName = (data) => `prep mock ${data.session}`;
const fieldsOf = (panel, data) => [...panel.querySelectorAll(data.fields)];
const nameOf = (field) => field.getAttribute("aria-label") || field.placeholder || "";

/** Words of a text. */
export function countWords(text) {
  return text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}

/** The white space at the start of the line that ends at `end`, one level more after a colon. */
export function indentAfter(text, end) {
  const line = text.slice(text.lastIndexOf("\n", end - 1) + 1, end);
  return line.match(/^\s*/)[0] + (line.trimEnd().endsWith(":") ? "    " : "");
}

function readDrafts(data) {
  try {
    const kept = JSON.parse(localStorage.getItem(storeName(data)) || "{}");
    return kept.draft === data.draft ? kept.fields : {};
  } catch {
    return {};
  }
}

function keepDraft(data, field) {
  const fields = { ...readDrafts(data), [nameOf(field)]: field.value };
  try {
    localStorage.setItem(storeName(data), JSON.stringify({ draft: data.draft, fields }));
  } catch {
    /* a full or forbidden store: the draft then ends with the tab */
  }
}

/** Type into a field of React's. */
function fill(field, text) {
  const kind = field instanceof HTMLTextAreaElement ? HTMLTextAreaElement : HTMLInputElement;
  Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(field, text);
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

function showCount(panel, text) {
  const place = panel.querySelector(".mock-words");
  if (!place) return;
  const count = countWords(text);
  const { lo, hi } = place.dataset;
  place.textContent = count ? `${count} word${count === 1 ? "" : "s"}; usually ${lo} to ${hi}` : `usually ${lo} to ${hi} words`;
}

function enter(panel, data) {
  const kept = readDrafts(data);
  for (const field of fieldsOf(panel, data)) {
    const text = kept[nameOf(field)];
    if (text && text !== field.value) fill(field, text);
  }
  const first = data.first && panel.querySelector(data.first);
  const area = panel.querySelector("textarea");
  if (area) showCount(panel, area.value);
  if (first) first.focus({ preventScroll: true });
  for (const wait of [0, 400]) setTimeout(() => panel.scrollIntoView({ block: "nearest" }), wait);  // charts grow
}

function onKey(event) {
  const area = event.target;
  if (!area.closest?.(".st-key-mock_kind_code") || area.tagName !== "TEXTAREA" || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") area.dataset.leaves = "1";
  else if (event.key === "Tab" && !area.dataset.leaves && !event.shiftKey) document.execCommand("insertText", false, "    ");
  else if (event.key === "Enter") document.execCommand("insertText", false, `\n${indentAfter(area.value, area.selectionStart)}`);
  else return void (event.key !== "Shift" && delete area.dataset.leaves);
  event.preventDefault();
}

export default function ({ data }) {
  const find = () => document.querySelector(`.st-key-${data.panel}`);
  const ended = new AbortController();
  const listen = { signal: ended.signal, capture: true };
  document.addEventListener("keydown", onKey, listen);
  document.addEventListener(
    "input",
    (event) => {
      const panel = event.target.closest?.(`.st-key-${data.panel}`);
      if (!panel || !fieldsOf(panel, data).includes(event.target)) return;
      keepDraft(data, event.target);
      if (event.target.tagName === "TEXTAREA") showCount(panel, event.target.value);
    },
    listen,
  );
  let tries = 0;
  const look = () => {
    const panel = find();
    if (panel && shown !== data.turn && (!data.first || panel.querySelector(data.first))) {
      shown = data.turn;
      enter(panel, data);
    }
    if (shown === data.turn || (tries += 1) > 200) clearInterval(timer);
  };
  const timer = setInterval(look, 50);
  return () => {
    ended.abort();
    clearInterval(timer);
  };
}
