// Rectangles over a horizontal axis of whole numbers, in rows, as SVG: a Gantt chart, a tree of shared prefixes.
//
//   data = { rects: [[x0, x1, top, bottom, style, label, title, id], ...],   x1 and bottom are exclusive
//            rows: [[label, id], ...], x: [first, end], unit: "step", row_height, marker: x or null,
//            chosen: id or null, alt, lanes: names of the rows of one label ("A", "B"), flag: [x, text] or null }
//            a rect may end with the index of its request's colour, or the custom property of a reason's colour
//
// Styles differ by pattern and height as well as colour. A click, or Enter on the current rectangle, sends
// `picked` = {id, x}. Every call draws everything again: at most 3,000 rectangles.

const NS = "http://www.w3.org/2000/svg";
const AXIS = 20;
const PATTERNS = { waiting: "lines", preempted: "hatch", cached: "hatch-cached", shared: "dots", gone: "lines" };
const FILLS = ["prefill", "decode", "used"];
const SHADES = ["phase", "work"];
/** Behind the bars, over all lanes of a label. */
const LANE_GAP = 7;
/** Pixels between the lanes of two labels. */
const FLAG = 14;
/** Pixels of the line above the axis, for the text of the flag. */
const CHARACTER = 7, LINE = 15, MOST_LINES = 5;
/** Pixels of a label's character and line, and the lines of a node. */
const LETTER = 14;
/** Pixels for the name of a lane. */

/** At most `wanted` round numbers in [first, end). */
export function ticks(first, end, wanted) {
  const least = Math.max(1, (end - first) / Math.max(1, wanted));
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least);
  const found = [];
  for (let at = Math.ceil(first / step) * step; at < end; at += step) found.push(at);
  return found;
}

/** Distance of a rectangle from the edges of its row, in pixels: phases differ in height too. */
export function inset(style, height) {
  if (SHADES.includes(style)) return -2;
  if (["waiting", "passed", "preempted"].includes(style)) return Math.round(height * 0.3);
  return style === "decode" ? Math.round(height * 0.2) : 1;
}

/** The rectangle after an arrow key from rectangle `at`: along the row, or to the nearest one of the next row. */
export function neighbour(rects, at, key) {
  const [x0, x1, top] = rects[at];
  const middle = (x0 + x1) / 2;
  const along = { ArrowRight: 1, ArrowLeft: -1 }[key];
  const ahead = (rect) =>
    along ? rect[2] === top && (rect[0] - x0) * along > 0 : (rect[2] - top) * (key === "ArrowDown" ? 1 : -1) > 0;
  const away = (rect) =>
    along ? Math.abs(rect[0] - x0) : Math.abs(rect[2] - top) * 1e6 + Math.abs((rect[0] + rect[1]) / 2 - middle);
  let best = at;
  rects.forEach((rect, index) => {
    if (ahead(rect) && (best === at || away(rect) < away(rects[best]))) best = index;
  });
  return best;
}

function element(name, attributes, parent) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.appendChild(made);
  return made;
}

/** Write a label into a box, if it fits. The second line of a node's label is its text: it is shortened to the box, and
 *  follows the first line in a box of one row. */
function write(group, box, style, label) {
  if (!label || box.height < 9) return;
  const [name, text] = label.split("\n"), most = Math.floor((box.width - 8) / CHARACTER);
  if (text === undefined) {
    if (name.length <= most) element("text", { class: `label ${style}`, x: box.x + 4, y: box.y + box.height / 2 }, group).textContent = name;
    return;
  }
  const room = Math.max(1, Math.min(MOST_LINES, Math.floor(box.height / LINE)));
  const lines = room > 1 && name ? [name, ...wrapped(text, most, room - 1)] : wrapped([name, text].filter(Boolean).join(" · "), most, room);
  lines.forEach((line, at) => {
    const y = box.y + box.height / 2 + (at - (lines.length - 1) / 2) * LINE, shown = shortened(line, most);
    if (!shown) return;
    const back = { x: box.x + 2, y: y - LINE / 2, width: shown.length * 6.95 + 4, height: LINE };
    if (PATTERNS[style]) element("rect", { ...back, class: `back ${style}` }, group);
    element("text", { class: `label node ${style}`, x: box.x + 4, y }, group).textContent = shown;
  });
}

/** The text in at most so many lines of `most` characters; the last line is what remains. */
export function wrapped(text, most, lines) {
  const characters = [...text], found = [];
  for (let at = 0; found.length < lines && (at < characters.length || !found.length) && most > 0; at += most) {
    const isLast = found.length === lines - 1;
    found.push(characters.slice(at, isLast ? undefined : at + most).join(""));
  }
  return found;
}

/** The text, or its beginning and an ellipsis; "" where not even that fits. */
export function shortened(text, most) {
  const characters = [...text];
  if (characters.length <= most) return text;
  return most < 3 ? "" : `${characters.slice(0, most - 1).join("")}…`;
}

/** Draw everything; returns functions that highlight a rectangle and find the column under a pointer. */
function draw(frame, data) {
  const svg = frame.querySelector("svg");
  const axis = AXIS + (data.flag ? FLAG : 0);
  const width = Math.max(240, frame.clientWidth);
  const lanes = data.lanes ?? [], each = Math.max(1, lanes.length), gap = lanes.length ? LANE_GAP : 0;
  const letters = lanes.length ? LETTER : 0;
  const longest = Math.max(0, ...data.rows.map(([name]) => name.length));
  const gutter = data.rows.length ? Math.min(width * 0.28, 12 + letters + 7 * longest) : 0;
  const height = data.row_height;
  const numRows = Math.max(data.rows.length * each, ...data.rects.map((rect) => rect[3]), 1);
  const line = (row) => axis + row * height + Math.floor(row / each) * gap + gap / 2;
  const total = line(numRows);
  const [first, end] = data.x;
  const scale = (width - gutter - 4) / Math.max(1, end - first);
  const at = (x) => gutter + (x - first) * scale;
  svg.setAttribute("viewBox", `0 0 ${width} ${total}`);
  svg.setAttribute("height", total);
  svg.setAttribute("aria-label", data.alt);
  svg.querySelectorAll(":scope > g").forEach((group) => group.remove());
  const group = element("g", {}, svg);

  const unitBegins = width - 8 - 6.5 * data.unit.length;
  for (const tick of ticks(first, end, Math.max(2, Math.floor((width - gutter) / 90)))) {
    element("line", { class: "grid", x1: at(tick), x2: at(tick), y1: axis, y2: total }, group);
    if (at(tick) + 7 * `${tick}`.length > unitBegins) continue;
    element("text", { class: "tick", x: at(tick) + 2, y: axis - 7 }, group).textContent = `${tick}`;
  }
  element("text", { class: "tick unit", x: width - 4, y: axis - 7 }, group).textContent = data.unit;
  data.rows.forEach(([name, id], row) => {
    const most = Math.floor((gutter - letters) / 6.6), middle = line(row * each) + (each * height) / 2;
    const label = element("text", { class: id === data.chosen ? "row chosen" : "row", x: gutter - letters - 6, y: middle }, group);
    label.textContent = name.length > most ? `${name.slice(0, most - 1)}…` : name;
    label.dataset.id = id;
    lanes.forEach((lane, at) => {
      element("text", { class: "lane", x: gutter - 6, y: line(row * each + at) + height / 2 }, group).textContent = lane;
    });
  });
  data.rects.forEach((rect, index) => {
    const [x0, x1, top, bottom, style, label, , id, colour] = rect;
    if (style === "hit") {
      element("circle", { class: "hit", cx: at(x0) + 1, cy: line(top) + height / 2, r: Math.min(4.5, height / 3) }, group).dataset.index = index;
      return;
    }
    const margin = inset(style, height);
    const box = { x: at(x0), y: line(top) + margin, width: Math.max(1, (x1 - x0) * scale - 1), height: (bottom - top) * height - 2 * margin };
    const hasReason = typeof colour === "string";
    const own = hasReason ? `var(--${colour})` : colour === null || colour === undefined ? `var(--${style})` : `var(--request-${colour})`;
    const fill = hasReason ? own : PATTERNS[style] ? `url(#${PATTERNS[style]})` : FILLS.includes(style) ? own : SHADES.includes(style) ? "var(--text)" : "none";
    const chosen = id === data.chosen ? " chosen" : "";
    const shape = element("rect", { ...box, style: `fill: ${fill}; --own: ${own}`, class: `box ${style}${hasReason && style !== "passed" ? " why" : ""}${chosen}` }, group);
    shape.dataset.index = index;
    if (hasReason && style === "preempted") element("rect", { ...box, style: "fill: url(#stripes)", class: "box stripes" }, group);
    write(group, box, style, label);
  });
  if (data.flag && data.flag[0] >= first && data.flag[0] < end) {
    const x = at(data.flag[0]), isLeft = x + 7 * data.flag[1].length + 12 > width;
    element("line", { class: "flag", x1: x, x2: x, y1: axis - 5, y2: total }, group);
    const text = element("text", { class: isLeft ? "flag before" : "flag", x: x + (isLeft ? 4 : -4), y: 11 }, group);
    text.textContent = data.flag[1];
  }
  if (data.marker !== null && data.marker >= first && data.marker < end) {
    const x = at(data.marker);
    element("rect", { class: "marker", x, y: axis - 5, width: Math.max(1.5, scale), height: total - axis + 5 }, group);
  }
  const point = (index) => {
    svg.querySelector(".cursor")?.remove();
    if (!data.rects[index]) return;
    const [x0, x1, top, bottom] = data.rects[index];
    const box = { x: at(x0), y: line(top), width: Math.max(3, (x1 - x0) * scale), height: (bottom - top) * height };
    element("rect", { ...box, class: "cursor" }, group);
  };
  const columnAt = (clientX) => {
    const x = clientX - svg.getBoundingClientRect().left;
    return Math.min(end - 1, Math.max(first, Math.floor(first + (x - gutter) / scale)));
  };
  return { point, columnAt };
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".rects");
  const svg = frame.querySelector("svg");
  const status = frame.querySelector(".status");
  let current = data.rects.findIndex((rect) => rect[7] === data.chosen);
  let drawn = draw(frame, data);
  // With the focus only the cursor changes: a bar redrawn under a pressed mouse button gets no click.
  const showCursor = () => drawn.point(svg.matches(":focus-visible") ? current : -1);
  const tell = (index) => {
    status.textContent = index >= 0 ? data.rects[index][6] : data.hint || "";
  };
  const pick = (id, x) => setTriggerValue("picked", { id, x });
  const under = (event) => (event.target.dataset.index === undefined ? -1 : Number(event.target.dataset.index));

  svg.onmousemove = (event) => tell(under(event));
  svg.onmouseleave = () => tell(-1);
  svg.onclick = (event) => {
    const index = under(event);
    if (index >= 0) pick(data.rects[index][7], drawn.columnAt(event.clientX));
    else if (event.target.dataset.id !== undefined) pick(data.rows.find(([, id]) => `${id}` === event.target.dataset.id)[1], null);
  };
  svg.onfocus = showCursor;
  svg.onblur = () => drawn.point(-1);
  svg.onkeydown = (event) => {
    if (!data.rects.length) return;
    if (event.key.startsWith("Arrow")) {
      current = current < 0 ? 0 : neighbour(data.rects, current, event.key);
    } else if (event.key === "Enter" && current >= 0) {
      pick(data.rects[current][7], data.rects[current][0]);
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move by a step
    showCursor();
    tell(current);
  };
  tell(-1);
  const observer = new ResizeObserver(() => {
    drawn = draw(frame, data);
    showCursor();
  });
  observer.observe(frame);
  return () => observer.disconnect();
}
