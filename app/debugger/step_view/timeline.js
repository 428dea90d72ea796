// All steps of the run as four thin curves, a lane per kind of event, and an axis. Press to scrub; drag in the lanes of
// events to zoom.

import { EVENT_BITS } from "./breaks.js";

const MAX_COLUMNS = 1000;
/** Many steps share a column: its minimum and maximum are drawn, so that no peak is lost. */
const CURVES = ["running", "waiting", "free", "tokens"];
/** Grey, because a colour stands for a request. */
export const TICKS = [
  ["preempt", "▼", "#D55E00"],
  ["oom", "■", "#CC79A7"],
  ["evict", "◆", "#E69F00"],
  ["hit", "●", "#009E73"],
  ["finish", "▮", "#56B4E9"],
];
/** Kinds of events with their glyphs, which tell them apart without their colours. */
export const LABELS = 108;
const NUMBERS = 44;
const CURVE = 24, TICK = 12, AXIS = 16;
const GLYPH_FROM = 7;
/** Pixels per column; narrower ones have bars instead of glyphs. */
const STRIDES = [1, 2, 5];
const LABEL_EVERY = 90;
/** Pixels between two numbers of the axis, at least. */

/** values of steps first .. last - 1 -> {low, high} with one entry per column. */
export function minMax(values, first, last, columns) {
  const low = new Float64Array(columns), high = new Float64Array(columns);
  for (let column = 0; column < columns; column++) {
    const [from, to] = columnSteps(column, first, last, columns);
    let least = Infinity, most = -Infinity;
    for (let step = from; step < to; step++) {
      const value = values[step];
      if (value < least) least = value;
      if (value > most) most = value;
    }
    low[column] = least;
    high[column] = most;
  }
  return { low, high };
}

/** All events of a column's steps in one byte per column. */
export function anyEvents(events, first, last, columns) {
  const found = new Uint8Array(columns);
  for (let column = 0; column < columns; column++) {
    const [from, to] = columnSteps(column, first, last, columns);
    for (let step = from; step < to; step++) found[column] |= events[step];
  }
  return found;
}

/** [from, to) of a column; never empty. */
export function columnSteps(column, first, last, columns) {
  const count = last - first;
  const from = first + Math.floor((column * count) / columns);
  const to = first + Math.floor(((column + 1) * count) / columns);
  return [Math.min(from, last - 1), Math.max(to, Math.min(from, last - 1) + 1)];
}

export function stepAtFraction(fraction, first, last) {
  const step = first + Math.floor(fraction * (last - first));
  return Math.max(first, Math.min(last - 1, step));
}

/** Cover what lies ahead of an open question. */
export function cover(context, theme, from, to, height) {
  if (to <= from) return;
  context.fillStyle = theme.panel;
  context.fillRect(from, 0, to - from, height);
  context.fillStyle = theme.quiet;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  if (to - from > 130) context.fillText("hidden during the quiz", from + 8, height / 2);
}

/** Steps between two numbers of an axis with at most `most` numbers: 1, 2 or 5 times a power of ten. */
export function strideFor(count, most) {
  for (let power = 1; ; power *= 10) {
    for (const factor of STRIDES) if (count / (factor * power) <= Math.max(1, most)) return factor * power;
  }
}

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.still = document.createElement("canvas");
    this.range = null;
  }

  /** Draw all but the cursor; `range`: [first, last) to show, or null for all. */
  prepare(figures, width, range, theme) {
    this.figures = figures;
    this.theme = theme;
    this.range = range ?? [0, figures.length];
    const scale = (this.scale = window.devicePixelRatio || 1);
    this.width = width;
    this.height = CURVES.length * CURVE + TICKS.length * TICK + AXIS + 6;
    for (const canvas of [this.canvas, this.still]) {
      canvas.width = Math.ceil(width * scale);
      canvas.height = Math.ceil(this.height * scale);
    }
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    const context = this.still.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const [first, last] = this.range;
    if (last <= first) return;
    const columns = Math.max(1, Math.min(MAX_COLUMNS, Math.floor(this.plotWidth), last - first));
    CURVES.forEach((name, row) => this.drawCurve(context, name, row, columns));
    this.drawTicks(context, columns);
    this.drawAxis(context);
  }

  get plotWidth() {
    return Math.max(10, this.width - LABELS - NUMBERS);
  }

  drawCurve(context, name, row, columns) {
    const [first, last] = this.range;
    const { low, high } = minMax(this.figures[name], first, last, columns);
    const highest = Math.max(0, ...high), most = Math.max(1, highest);
    const base = (row + 1) * CURVE - 2, tall = CURVE - 5;
    const wide = this.plotWidth / columns;
    context.fillStyle = this.theme.quiet;
    context.fillText(name, 0, base - tall / 2);
    context.fillText(highest.toLocaleString("en"), this.width - NUMBERS + 4, base - tall / 2);
    context.fillStyle = this.theme.line;
    context.fillRect(LABELS, base, this.plotWidth, 1);
    for (let column = 0; column < columns; column++) {
      const top = (high[column] / most) * tall, bottom = (low[column] / most) * tall;
      const x = LABELS + column * wide;
      context.globalAlpha = 0.35;
      context.fillStyle = this.theme.quiet;
      context.fillRect(x, base - bottom, Math.max(wide, 0.5), bottom);
      context.globalAlpha = 1;
      context.fillRect(x, base - top, Math.max(wide, 0.5), Math.max(1.2, top - bottom));
    }
  }

  drawTicks(context, columns) {
    const [first, last] = this.range;
    const found = anyEvents(this.figures.events, first, last, columns);
    const wide = this.plotWidth / columns;
    const top = CURVES.length * CURVE + 2;
    TICKS.forEach(([kind, glyph, colour], row) => {
      const bit = 1 << EVENT_BITS.indexOf(kind), middle = top + row * TICK + TICK / 2;
      context.fillStyle = this.theme.quiet;
      context.fillText(`${glyph} ${kind}`, 0, middle);
      context.fillStyle = this.theme.line;
      context.fillRect(LABELS, top + (row + 1) * TICK - 1, this.plotWidth, 1);
      context.fillStyle = colour;
      context.textAlign = "center";
      for (let column = 0; column < columns; column++) {
        if (!(found[column] & bit)) continue;
        if (wide >= GLYPH_FROM) context.fillText(glyph, LABELS + (column + 0.5) * wide, middle);
        else context.fillRect(LABELS + column * wide, middle - 4, Math.max(wide, 1.5), 8);
      }
      context.textAlign = "left";
    });
  }

  drawAxis(context) {
    const [first, last] = this.range;
    const stride = strideFor(last - first, this.plotWidth / LABEL_EVERY), top = this.height - AXIS;
    context.fillStyle = this.theme.quiet;
    context.fillText("step", 0, top + AXIS / 2);
    context.textAlign = "center";
    for (let step = Math.ceil(first / stride) * stride; step < last; step += stride) {
      const x = this.xOf(step + 0.5);
      context.fillRect(x, top, 1, 3);
      context.fillText(step.toLocaleString("en"), x, top + AXIS / 2 + 2);
    }
    context.textAlign = "left";
  }

  /** hidden: the first step that is covered, or null. */
  draw(step, brush, hidden = null) {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.still, 0, 0);
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (brush) {
      const [from, to] = brush.map((at) => this.xOf(at)).sort((a, b) => a - b);
      context.fillStyle = `${this.theme.text}26`;
      context.fillRect(from, 0, to - from, this.height);
    }
    if (hidden !== null) cover(context, this.theme, Math.max(LABELS, this.xOf(hidden)), this.width, this.height);
    const x = this.xOf(step + 0.5);
    context.fillStyle = this.theme.text;
    if (x >= LABELS && x <= LABELS + this.plotWidth) context.fillRect(x - 0.75, 0, 1.5, this.height);
  }

  xOf(step) {
    const [first, last] = this.range;
    return LABELS + ((step - first) / (last - first)) * this.plotWidth;
  }

  stepAt(x) {
    return stepAtFraction((x - LABELS) / this.plotWidth, ...this.range);
  }

  /** Whether a press at this height selects a range instead of a step. */
  isStrip(y) {
    return y > CURVES.length * CURVE;
  }
}
