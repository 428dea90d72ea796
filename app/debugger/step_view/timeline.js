// All steps of the run as four thin curves with events below. Press to scrub; drag in the strip of events to zoom.

import { EVENT_BITS } from "./breaks.js";

const MAX_COLUMNS = 1000;
/** Many steps share a column: its minimum and maximum are drawn, so that no peak is lost. */
const CURVES = [
  ["running", "#56B4E9"],
  ["waiting", "#D55E00"],
  ["free", "#009E73"],
  ["tokens", "#CC79A7"],
];
export const TICKS = [
  ["preempt", "#D55E00"],
  ["oom", "#E69F00"],
  ["evict", "#F0E442"],
  ["hit", "#009E73"],
  ["finish", "#56B4E9"],
];
const LABELS = 62, CURVE = 24, TICK = 5, NUMBERS = 44;

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

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.still = document.createElement("canvas");
    this.range = null;
  }

  /** Draw all but the cursor; `range`: [first, last) to show, or null for all. */
  prepare(figures, width, range) {
    this.figures = figures;
    this.range = range ?? [0, figures.length];
    const scale = (this.scale = window.devicePixelRatio || 1);
    this.width = width;
    this.height = CURVES.length * CURVE + TICKS.length * TICK + 6;
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
    CURVES.forEach(([name, colour], row) => this.drawCurve(context, name, colour, row, columns));
    this.drawTicks(context, columns);
  }

  get plotWidth() {
    return Math.max(10, this.width - LABELS - NUMBERS);
  }

  drawCurve(context, name, colour, row, columns) {
    const [first, last] = this.range;
    const { low, high } = minMax(this.figures[name], first, last, columns);
    const most = Math.max(1, ...high);
    const base = (row + 1) * CURVE - 2, tall = CURVE - 5;
    const wide = this.plotWidth / columns;
    context.fillStyle = "#9ca3af";
    context.fillText(name, 0, base - tall / 2);
    context.fillText(most.toLocaleString("en"), this.width - NUMBERS + 4, base - tall / 2);
    context.fillStyle = "#1f2937";
    context.fillRect(LABELS, base, this.plotWidth, 1);
    for (let column = 0; column < columns; column++) {
      const top = (high[column] / most) * tall, bottom = (low[column] / most) * tall;
      const x = LABELS + column * wide;
      context.globalAlpha = 0.35;
      context.fillStyle = colour;
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
    context.fillStyle = "#9ca3af";
    context.fillText("events", 0, top + (TICKS.length * TICK) / 2);
    TICKS.forEach(([kind, colour], row) => {
      const bit = 1 << EVENT_BITS.indexOf(kind);
      context.fillStyle = colour;
      for (let column = 0; column < columns; column++) {
        if (found[column] & bit) context.fillRect(LABELS + column * wide, top + row * TICK, Math.max(wide, 1.5), TICK - 1);
      }
    });
  }

  draw(step, brush) {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.still, 0, 0);
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (brush) {
      const [from, to] = brush.map((at) => this.xOf(at)).sort((a, b) => a - b);
      context.fillStyle = "rgba(229, 231, 235, 0.15)";
      context.fillRect(from, 0, to - from, this.height);
    }
    const x = this.xOf(step + 0.5);
    context.fillStyle = "#ffffff";
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
