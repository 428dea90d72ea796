// Small charts over the same steps, one below the other: figures as columns from minimum to maximum.
//
//   data = { charts: [{title, unit, low: [...], high: [...], limit: number or null, now: text}, ...],
//            first: [step of each column], end: step after the last, step, range: [first, last] or null,
//            marks: [[step, kind, text], ...], height, alt }
//
// With step null the columns are times, and nothing can be selected: `first` in seconds before now (negative), end 0; or
// with axis "run" in seconds since the start of a run, with ticks below. A chart may then have `before`: the figures of
// an earlier run, one per column, drawn as a line.
//
// Few marks are glyphs; many are ticks in lanes, one lane per kind: preempted, aborted, finished from above.
//
// A click sends `picked` = step. Dragging sends `brushed` = [first, last] (steps, both included). With the keyboard:
// arrows move the cursor, Shift ten columns at a time, Enter picks, Shift+Enter twice selects the range in between.

const GUTTER = 46;
const COLOURS = { preempt: "#D55E00", abort: "#CC79A7", finish: "#009E73" };
const LANES = ["preempt", "abort", "finish"];
const BEFORE = "#E69F00";
const GLYPHS = { preempt: "▼", abort: "✕", finish: "•" };

/** The column that holds a step: the last that begins at it or before. */
export function columnOf(first, step) {
  let low = 0;
  let high = first.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (first[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Format a figure: 12 400 becomes 12.4k. */
export function brief(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (Math.abs(value) >= 1e3) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(3);
}

/** A figure with its unit: "4 requests", "1 request". */
export function withUnit(figure, unit) {
  return `${figure} ${figure === "1" ? unit.replace(/^(request|block|token)s(?![/\w])/, "$1") : unit}`;
}

/** The largest figure of a chart. */
export function ceiling(chart) {
  const most = Math.max(0, ...[...chart.high, ...(chart.before ?? [])].filter((value) => value !== null));
  if (chart.limit !== null && chart.limit <= 4 * Math.max(most, 1e-9)) return Math.max(most, chart.limit);
  return most || 1;
}

function drawChart(canvas, chart, data, cursor, brush) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  const numSteps = data.end - data.first[0];
  const right = data.axis === "run" ? width - 8 : width; // the last tick
  const x = (step) => GUTTER + ((step - data.first[0]) / numSteps) * (right - GUTTER);
  const most = ceiling(chart);
  const y = (value) => height - 10 - (value / most) * (height - 16);

  const style = getComputedStyle(canvas);
  const said = (name) => style.getPropertyValue(name) || "#808080";
  pen.font = "10px ui-monospace, Menlo, Consolas, monospace";
  pen.fillStyle = said("--quiet");
  pen.textAlign = "right";
  pen.fillText(brief(most), GUTTER - 5, y(most) + 7);
  pen.fillText("0", GUTTER - 5, y(0) + 2);
  pen.fillStyle = said("--line");
  pen.fillRect(GUTTER, y(0), width - GUTTER, 1);

  if (brush) {
    pen.globalAlpha = 0.14;
    pen.fillStyle = said("--text");
    pen.fillRect(x(brush[0]), 0, Math.max(1, x(brush[1] + 1) - x(brush[0])), height - 10);
    pen.globalAlpha = 1;
  }
  chart.high.forEach((high, column) => {
    if (high === null) return;
    const left = x(data.first[column]);
    const wide = Math.max(1, x(endOf(data, column)) - left) + 0.5; // no seam between columns
    pen.fillStyle = said("--spread");
    pen.fillRect(left, y(chart.low[column]), wide, y(0) - y(chart.low[column]));
    pen.fillStyle = said("--blue");
    pen.fillRect(left, y(high) - 0.75, wide, Math.max(1.5, y(chart.low[column]) - y(high)));
  });
  drawBefore(pen, chart.before ?? [], data, x, y);
  if (data.axis === "run") drawTicks(pen, said("--quiet"), data, x, height);
  if (chart.limit !== null && chart.limit <= most) {
    pen.strokeStyle = said("--text");
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(GUTTER, y(chart.limit));
    pen.lineTo(width, y(chart.limit));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.textAlign = "center";
  const few = data.marks.length <= 120;
  for (const [step, kind] of data.marks) {
    pen.fillStyle = COLOURS[kind];
    if (few) pen.fillText(GLYPHS[kind], x(step + 0.5), height - 1);
    else pen.fillRect(x(step + 0.5), height - 9 + 3 * LANES.indexOf(kind), 1.5, 2.5);
  }
  const line = (step, strength) => {
    pen.globalAlpha = strength;
    pen.fillStyle = said("--text");
    pen.fillRect(x(step), 0, data.step === null ? 1.5 : Math.max(1.5, x(step + 1) - x(step)), height - 10);
    pen.globalAlpha = 1;
  };
  if (data.step !== null) line(data.step, 0.3);
  if (cursor !== null) line(cursor, 0.45);
  return (clientX) => {
    const share = (clientX - canvas.getBoundingClientRect().left - GUTTER) / Math.max(1, right - GUTTER);
    const at = data.first[0] + share * numSteps;
    if (data.axis === "run") return data.first[columnOf(data.first, at)];
    return Math.min(data.end - 1, Math.max(data.first[0], Math.floor(at)));
  };
}

/** The end of a column. */
const endOf = (data, column) => (column + 1 < data.first.length ? data.first[column + 1] : data.end);

/** Draw the figures of an earlier run: a level per column, joined where columns follow each other. */
function drawBefore(pen, before, data, x, y) {
  pen.strokeStyle = BEFORE;
  pen.lineWidth = 1.75;
  pen.beginPath();
  before.forEach((value, column) => {
    if (value === null) return;
    const joins = column > 0 && before[column - 1] !== null;
    if (joins) pen.lineTo(x(data.first[column]), y(value));
    else pen.moveTo(x(data.first[column]), y(value));
    pen.lineTo(x(endOf(data, column)), y(value));
  });
  pen.stroke();
  pen.lineWidth = 1;
}

/** Seconds to label on the axis of a run: at most 7, from 0. */
export function secondsOf(end) {
  const every = [1, 2, 5, 10, 20, 60].find((seconds) => end / seconds <= 7) ?? 120;
  return Array.from({ length: Math.floor(end / every) + 1 }, (_, index) => index * every);
}

function drawTicks(pen, colour, data, x, height) {
  pen.fillStyle = colour;
  pen.textAlign = "center";
  for (const second of secondsOf(data.end)) pen.fillText(second ? `${second}` : "0 s", x(second), height);
}

export function describe(data, step) {
  const column = columnOf(data.first, step);
  const next = endOf(data, column);
  const last = next - 1;
  const steps = data.first[column] === last ? `step ${last}` : `steps ${data.first[column]} to ${last}`;
  const ago = data.axis === "run" ? `second ${data.first[column].toFixed(2)}` : `${Math.round(-next)} s ago`;
  const where = data.step === null ? ago : steps;
  const figures = data.charts.map(({ title, low, high, before }) => {
    const span = low[column] === high[column] ? brief(low[column]) : `${brief(low[column])} to ${brief(high[column])}`;
    return `${title.toLowerCase()} ${span}${before ? ` (yesterday ${brief(before[column])})` : ""}`;
  });
  const here = data.marks.filter(([at]) => at >= data.first[column] && at < next).map(([, , text]) => text);
  return `${where}: ${[...figures, ...here].join(", ")}`;
}

export default function ({ data, parentElement, setTriggerValue }) {
  const frame = parentElement.querySelector(".lines");
  const grid = frame.querySelector(".grid");
  const status = frame.querySelector(".status");
  grid.setAttribute("aria-label", data.alt);
  grid.classList.toggle("run", data.axis === "run");
  grid.replaceChildren();
  if (!data.first.length) return;
  const canvases = data.charts.map((chart) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("b");
    name.textContent = chart.title;
    const rest = document.createElement("span");
    rest.textContent = ` ${withUnit(chart.now, chart.unit)}`;
    caption.append(name, rest);
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true"); // the group has the description
    canvas.style.height = `${data.height}px`;
    figure.append(caption, canvas);
    grid.append(figure);
    return canvas;
  });
  let cursor = data.step === null ? (frame.cursor ?? null) : null; // charts over time are drawn again every second
  let brush = data.range;
  let from = null;
  let stepAt = [];
  const draw = () => {
    stepAt = canvases.map((canvas, index) => drawChart(canvas, data.charts[index], data, cursor, brush));
    frame.cursor = cursor;
    status.textContent = cursor === null ? data.hint : describe(data, cursor);
  };
  canvases.forEach((canvas, index) => {
    canvas.onpointerdown = (event) => {
      if (data.step === null) return;
      from = stepAt[index](event.clientX);
      canvas.setPointerCapture(event.pointerId);
    };
    canvas.onpointermove = (event) => {
      cursor = stepAt[index](event.clientX);
      if (from !== null && cursor !== from) brush = [Math.min(from, cursor), Math.max(from, cursor)];
      draw();
    };
    canvas.onpointerup = (event) => {
      const to = stepAt[index](event.clientX);
      if (from !== null && to !== from) setTriggerValue("brushed", [Math.min(from, to), Math.max(from, to)]);
      else if (from !== null) setTriggerValue("picked", to);
      from = null;
    };
    canvas.onpointercancel = () => (from = null);
    canvas.onpointerleave = () => {
      if (from !== null) return;
      cursor = null;
      draw();
    };
  });
  grid.onkeydown = (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in moves) {
      const column = columnOf(data.first, cursor ?? data.step ?? (data.axis === "run" ? 0 : data.end)) + moves[event.key] * (event.shiftKey ? 10 : 1);
      cursor = data.first[Math.min(data.first.length - 1, Math.max(0, column))];
    } else if (event.key === "Enter" && cursor !== null && data.step !== null) {
      if (!event.shiftKey) setTriggerValue("picked", cursor);
      else if (from === null) from = cursor;
      else {
        setTriggerValue("brushed", [Math.min(from, cursor), Math.max(from, cursor)]);
        from = null;
      }
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move by a step
    draw();
  };
  draw();
  const observer = new ResizeObserver(draw);
  observer.observe(grid);
  return () => observer.disconnect();
}
