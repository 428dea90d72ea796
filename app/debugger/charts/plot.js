// Curves and points over two axes, each linear or logarithmic, with limits; SVG.
//
//   data = { title, note, height, alt, x: axis, y: axis, curves, rules, marks }
//   axis = { title, unit, low, high, log }
//   curves: [{ name, points: [[x, y], ...], colour, style }]     style: "" or "dashed"
//   rules:  [{ axis: "x" or "y", at, label, style, beyond }]     style: "", "alarm", "solid"; beyond: shade the far side;
//                                                              a label "left|right" names both sides of an x
//   marks:  [{ name, x, y, text, colour, shape, label, id }]     shape: "circle", "diamond", "hollow"; label: null is the name
//
// Hovering shows the text of the nearest point, or the curves' values at the pointer. With the keyboard: arrows walk over
// the points, or along the curves. A click or Enter on a point with an id sends `picked` = id. Points keep their elements from one drawing to the next, so that they move.

const NS = "http://www.w3.org/2000/svg";
const LEFT = 56;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 32;
const NEAR = 18;
const SHAPES = {
  circle: "M-5.5,0 a5.5,5.5 0 1,0 11,0 a5.5,5.5 0 1,0 -11,0 z",
  hollow: "M-5,0 a5,5 0 1,0 10,0 a5,5 0 1,0 -10,0 z",
  diamond: "M0,-7 L7,0 L0,7 L-7,0 z",
};

/** The place of a value on an axis: 0 at its lower end, 1 at its upper. */
export function share(axis, value) {
  if (!axis.log) return (value - axis.low) / (axis.high - axis.low);
  return Math.log(value / axis.low) / Math.log(axis.high / axis.low);
}

/** The value at a place of an axis. */
export function valueAt(axis, place) {
  return axis.log ? axis.low * (axis.high / axis.low) ** place : axis.low + place * (axis.high - axis.low);
}

/** At most `wanted` round values on an axis. On a logarithmic one: powers of ten, or 1, 2, 5 in a short range. */
export function roundValues(axis, wanted) {
  const found = [];
  if (!axis.log) {
    const least = (axis.high - axis.low) / wanted;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * (1 - 1e-9));
    for (let count = Math.ceil(axis.low / step - 1e-9); count * step <= axis.high * (1 + 1e-9); count += 1) {
      found.push(Number((count * step).toPrecision(12)));
    }
    return found;
  }
  const first = Math.floor(Math.log10(axis.low));
  const last = Math.ceil(Math.log10(axis.high));
  const every = Math.max(1, Math.ceil((last - first) / wanted));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) found.push(Number(`${factor}e${power}`));
  }
  return found.filter((value) => value >= axis.low * (1 - 1e-9) && value <= axis.high * (1 + 1e-9));
}

/** Format a value of an axis: 12 000 becomes 12k. */
export function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${Number((value / (letter === "k" ? 1e3 : unit)).toPrecision(3))}${letter}`;
  }
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
}

/** The value of a curve at x, between its points; null outside. */
export function onCurve(points, x, axes) {
  const after = points.findIndex((point) => point[0] >= x); // of a step: its lower end
  if (after < 0 || (after === 0 && points[0][0] > x)) return null;
  if (points[after][0] === x) return points[after][1];
  const [[x0, y0], [x1, y1]] = [points[after - 1], points[after]];
  const part = (share(axes.x, x) - share(axes.x, x0)) / (share(axes.x, x1) - share(axes.x, x0));
  if (!axes.y.log) return y0 + part * (y1 - y0);
  return y0 * (y1 / y0) ** part;
}

/** Small boxes along curves in pixels, which labels avoid where they can. */
export function boxesAlong(curves) {
  return curves.flatMap((points) => points.slice(1).flatMap(([x, y], index) => {
    const [fromX, fromY] = points[index];
    const count = Math.min(200, Math.ceil(Math.hypot(x - fromX, y - fromY) / 4));
    return Array.from({ length: count + 1 }, (_, at) => {
      const part = count ? at / count : 0;
      const [here, level] = [fromX + part * (x - fromX), fromY + part * (y - fromY)];
      return [here - 1, level - 1, here + 1, level + 1];
    });
  }));
}

/** Places for the labels of points, none over another: [x, y, anchor] by point, null where there is no room. A label covers a curve only if no other place is free. */
export function labelPlaces(points, width, height, taken = [], along = []) {
  const boxes = [...points.map(({ x, y }) => [x - 7, y - 7, x + 7, y + 7]), ...taken];
  return points.map(({ x, y, label }) => {
    if (!label) return null;
    const long = 6.4 * label.length;
    const ways = [];
    const [left, right] = [[x - 11, "end"], [x + 11, "start"]];
    for (const away of [12, 26, 40, 54, 68]) {
      for (const [[at, anchor], up] of [[left, away], [right, -away], [right, away], [left, -away]]) ways.push([at, y - up + 4, anchor]);
    }
    for (const [at, base, anchor, avoided] of [...ways.map((way) => [...way, along]), ...ways.map((way) => [...way, []])]) {
      const from = anchor === "start" ? at : at - long;
      const box = [from, base - 10, from + long, base + 2];
      if (box[0] < LEFT || box[2] > width - 4 || box[1] < 0 || box[3] > height - BOTTOM) continue;
      if ([...boxes, ...avoided].some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      boxes.push(box);
      return [at, base, anchor];
    }
    return null;
  });
}

function made(name, attributes, parent, text) {
  const element = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}

function drawAxes(layer, data, to, width, height) {
  for (const value of roundValues(data.y, Math.max(2, (height - TOP - BOTTOM) / 34))) {
    made("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: to.y(value), y2: to.y(value) }, layer);
    made("text", { x: LEFT - 6, y: to.y(value) + 3.5, "text-anchor": "end" }, layer, short(value));
  }
  for (const value of roundValues(data.x, Math.max(2, (width - LEFT - RIGHT) / 74))) {
    made("line", { class: "grid", x1: to.x(value), x2: to.x(value), y1: TOP, y2: height - BOTTOM }, layer);
    made("text", { x: to.x(value), y: height - BOTTOM + 13, "text-anchor": "middle" }, layer, short(value));
  }
  const below = [data.x.title, data.x.unit].filter(Boolean).join(", ");
  made("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end", class: "loud" }, layer, below);
}

/** The left end of a label of a horizontal rule: the first place where no vertical rule crosses it. */
export function clearOf(verticals, long, width) {
  const starts = [LEFT + 6, ...verticals.map((x) => x + 6), width - RIGHT - 6 - long];
  const isClear = (from) => from >= LEFT && from + long <= width - RIGHT && verticals.every((x) => x < from - 3 || x > from + long + 3);
  return starts.find(isClear) ?? LEFT + 6;
}

/** Draw limits, and return the boxes of their lines and labels, which no other label may cover. */
function drawRules(layer, data, to, width, height) {
  const boxes = [];
  const bottom = height - BOTTOM;
  let row = 0;
  const verticals = data.rules.filter((rule) => rule.axis === "x").map((rule) => to.x(rule.at)).sort((a, b) => a - b);
  for (const rule of data.rules) {
    const place = share(data[rule.axis], rule.at);
    if (place < 0 || place > 1) continue;
    const colour = rule.style === "alarm" ? "alarm" : "loud";
    if (rule.axis === "y") {
      const y = to.y(rule.at);
      if (rule.beyond) made("rect", { class: "beyond", x: LEFT, y: TOP, width: width - RIGHT - LEFT, height: y - TOP }, layer);
      made("line", { class: `rule ${rule.style}`, x1: LEFT, x2: width - RIGHT, y1: y, y2: y }, layer);
      const base = y - TOP > 16 ? y - 4 : y + 12;
      const long = 6.4 * rule.label.length;
      const from = clearOf(verticals, long, width);
      made("text", { x: from, y: base, class: colour }, layer, rule.label);
      boxes.push([from, base - 10, from + long, base + 2], [LEFT, y - 2, width - RIGHT, y + 2]);
    } else {
      const x = to.x(rule.at);
      if (rule.beyond) made("rect", { class: "beyond", x, y: TOP, width: width - RIGHT - x, height: bottom - TOP }, layer);
      made("line", { class: `rule ${rule.style}`, x1: x, x2: x, y1: TOP, y2: bottom }, layer);
      boxes.push([x - 2, TOP, x + 2, bottom]);
      if (rule.label.includes("|")) { // words for both sides
        const [before, after] = rule.label.split("|");
        for (const [text, anchor, at] of [[before, "end", x - 8], [after, "start", x + 8]]) {
          made("text", { x: at, y: bottom - 8, "text-anchor": anchor, class: "loud" }, layer, text);
          const long = 6.4 * text.length;
          boxes.push([anchor === "end" ? at - long : at, bottom - 18, anchor === "end" ? at : at + long, bottom - 6]);
        }
        continue;
      }
      const isLeft = x + 6.4 * rule.label.length + 8 > width - RIGHT;
      const base = TOP + 9 + 14 * row;
      if (rule.label) row += 1;
      made("text", { x: x + (isLeft ? -5 : 5), y: base, "text-anchor": isLeft ? "end" : "start", class: colour }, layer, rule.label);
      const from = isLeft ? x - 5 - 6.4 * rule.label.length : x + 5;
      boxes.push([from, base - 10, from + 6.4 * rule.label.length, base + 2]);
    }
  }
  return boxes;
}

function drawCurves(layer, data, to) {
  for (const curve of data.curves) {
    const line = curve.points.map(([x, y]) => `${to.x(x).toFixed(1)},${to.y(y).toFixed(1)}`).join(" ");
    const style = `stroke: var(${curve.colour})`;
    made("polyline", { class: `curve ${curve.style}`, points: line, style, "clip-path": "url(#inside)" }, layer);
  }
}

function drawMarks(layer, data, to, width, height, taken) {
  const kept = new Map([...layer.querySelectorAll(".mark")].map((node) => [node.dataset.name, node]));
  const places = labelPlaces(
    data.marks.map((mark) => ({ x: to.x(mark.x), y: to.y(mark.y), label: mark.label ?? mark.name })), width, height, taken,
    boxesAlong(data.curves.map((curve) => curve.points.map(([x, y]) => [to.x(x), to.y(y)]))));
  layer.querySelectorAll(".label, .lead").forEach((node) => node.remove());
  const nodes = data.marks.map((mark, index) => {
    let node = kept.get(mark.name);
    kept.delete(mark.name);
    if (!node) {
      node = made("g", { class: "mark" }, layer);
      node.dataset.name = mark.name;
      made("path", {}, node);
    }
    node.setAttribute("class", `mark ${mark.shape === "hollow" ? "hollow" : ""}`);
    node.firstChild.setAttribute("d", SHAPES[mark.shape]);
    node.firstChild.setAttribute("style", mark.shape === "hollow" ? `stroke: var(${mark.colour})` : `fill: var(${mark.colour})`);
    node.style.transform = `translate(${to.x(mark.x)}px, ${to.y(mark.y)}px)`;
    const place = places[index];
    if (place) made("text", { class: "label loud", x: place[0], y: place[1], "text-anchor": place[2] }, layer, mark.label ?? mark.name);
    return node;
  });
  kept.forEach((node) => node.remove());
  return nodes;
}

function words(data, x) {
  const unit = data.x.unit ? ` ${data.x.unit}` : "";
  const values = data.curves.map((curve) => [curve, onCurve(curve.points, x, data)]).filter(([, y]) => y !== null);
  if (!values.length) return "";
  const lines = values.map(([curve, y]) => `${curve.name}: ${short(y)} ${data.y.unit}`);
  return [`${data.x.title}: ${short(x)}${unit}`, ...lines].join("\n");
}

/** Connect pointer and keyboard: show the text of a point, or the values of the curves. */
function connect(frame, svg, view, pick) {
  const tip = frame.querySelector(".tip");
  const said = frame.querySelector(".said");
  let current = -1;
  let along = null;
  const show = (text, x, y) => {
    tip.hidden = !text;
    tip.textContent = text;
    if (!text) return;
    const box = svg.getBoundingClientRect();
    const outer = frame.getBoundingClientRect();
    const left = x + box.left - outer.left;
    const sides = [left + 14, left - tip.offsetWidth - 14].filter((at) => at >= 0 && at + tip.offsetWidth <= outer.width);
    const top = y + box.top - outer.top;
    tip.style.left = `${Math.max(0, sides[0] ?? Math.min(left - 20, outer.width - tip.offsetWidth))}px`;
    tip.style.top = `${sides.length ? Math.max(0, top - tip.offsetHeight / 2) : top + 14}px`;
  };
  const point = (index) => {
    const { nodes, data, to } = view();
    nodes.forEach((node, other) => node.classList.toggle("current", other === index));
    current = index;
    if (index < 0) return show("");
    const mark = data.marks[index];
    const same = data.marks.filter((other) => other !== mark && Math.hypot(to.x(other.x) - to.x(mark.x), to.y(other.y) - to.y(mark.y)) < 4);
    const others = same.length ? `\nat the same place: ${same.map(({ name }) => name).join("; ")}` : "";
    show(`${mark.name}\n${mark.text}${others}`, to.x(mark.x), to.y(mark.y));
  };
  const line = (x, y) => {
    const { data, to, cursor, height } = view();
    const value = x === null ? null : valueAt(data.x, (x - LEFT) / (to.x(data.x.high) - LEFT));
    const text = value === null ? "" : words(data, value);
    cursor.style.display = text ? "" : "none";
    if (text) for (const [key, at] of [["x1", x], ["x2", x], ["y1", TOP], ["y2", height - BOTTOM]]) cursor.setAttribute(key, at);
    show(text, x ?? 0, y ?? 0);
    return text;
  };
  svg.onpointermove = (event) => {
    const { data, to } = view();
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const far = data.marks.map((mark) => Math.hypot(to.x(mark.x) - x, to.y(mark.y) - y));
    const nearest = far.indexOf(Math.min(...far));
    if (nearest >= 0 && far[nearest] <= NEAR) {
      line(null);
      return point(nearest);
    }
    point(-1);
    line(x >= LEFT && x <= to.x(data.x.high) ? x : null, y);
  };
  const leave = () => {
    point(-1);
    line(null);
  };
  svg.onpointerleave = leave;
  const send = () => {
    const id = view().data.marks[current]?.id ?? null;
    if (id !== null) pick(id);
  };
  svg.onclick = send;
  svg.onblur = leave;
  svg.onkeydown = (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const { data, to } = view();
    if (event.key === "Escape") leave();
    else if (event.key === "Enter") send();
    else if (!way) return;
    else if (data.marks.length > 1) {
      point((current + way + data.marks.length + (current < 0 && way < 0 ? 1 : 0)) % data.marks.length);
      said.textContent = tip.textContent;
    } else {
      along = Math.max(LEFT, Math.min(to.x(data.x.high), (along ?? LEFT) + way * (to.x(data.x.high) - LEFT) / 40));
      said.textContent = line(along, 40);
    }
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move by a step
  };
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".plot");
  const svg = frame.querySelector("svg");
  const [name, note] = frame.querySelectorAll("figcaption > *");
  name.textContent = data.title;
  note.textContent = ` ${data.note}`;
  svg.setAttribute("aria-label", data.alt);
  svg.style.height = `${data.height}px`;
  const [back, front] = svg.querySelectorAll("g.layer");
  let state = {};
  const draw = () => {
    const width = Math.max(160, svg.clientWidth);
    const height = data.height;
    const to = {
      x: (value) => LEFT + share(data.x, value) * (width - LEFT - RIGHT),
      y: (value) => height - BOTTOM - share(data.y, value) * (height - TOP - BOTTOM),
    };
    const inside = svg.querySelector("clipPath rect");
    for (const [key, value] of Object.entries({ x: LEFT, y: TOP - 4, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM + 4 })) inside.setAttribute(key, value);
    back.replaceChildren();
    drawAxes(back, data, to, width, height);
    const taken = drawRules(back, data, to, width, height);
    drawCurves(back, data, to);
    const cursor = made("line", { class: "cursor", style: "display: none" }, back);
    state = { data, to, height, cursor, nodes: drawMarks(front, data, to, width, height, taken) };
  };
  draw();
  connect(frame, svg, () => state, (id) => setTriggerValue("picked", id));
  const observer = new ResizeObserver(draw);
  observer.observe(frame);
  return () => observer.disconnect();
}
