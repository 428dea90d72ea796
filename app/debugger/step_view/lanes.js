// Lives of requests as lanes above the timeline, in its scale: waiting a dashed line, prefill a full bar, decode a lower
// one, preempted hatched; each in its request's colour.

import { shortened } from "./owners.js";
import { colourOf, markOf } from "./theme.js";
import { cover, LABELS } from "./timeline.js";

const LANE = 13, BAR = 9;
const MOST_LANES = 16;
const WAITING = 0, PREFILL = 1, DECODE = 2, PREEMPTED = 3;
export const PHASE_NAMES = ["waiting", "prefill", "decode", "preempted"];
const FADED = 0.3;

/** The lanes to draw: all of a small run; of a larger one those that live at the step, the selected one first.
 *  isAsking: without requests that arrive later. */
export function lanesAt(chunk, step, selected, isAsking = false, most = MOST_LANES) {
  const all = (chunk?.lanes ?? []).filter(([, , spans]) => !isAsking || spans[0]?.[1] <= step);
  if (all.length <= most) return all;
  const lives = all.filter(([, , spans]) => spans.length && spans[0][1] <= step && step <= spans.at(-1)[2]);
  const first = lives.filter(([name]) => name === selected);
  return [...first, ...lives.filter(([name]) => name !== selected)].slice(0, most).sort((a, b) => a[2][0][1] - b[2][0][1]);
}

export class Lanes {
  /** timeline: the one whose scale and colours they have. */
  constructor(canvas, timeline) {
    this.canvas = canvas;
    this.timeline = timeline;
    this.shown = [];
  }

  /** hidden: the first step that is covered, or null. */
  draw(lanes, step, selected, hidden = null) {
    this.shown = lanes;
    const scale = window.devicePixelRatio || 1, height = Math.max(1, lanes.length) * LANE;
    const size = [this.timeline.width, height, scale].join();
    if (size !== this.size) {
      this.size = size;
      this.canvas.width = Math.ceil(this.timeline.width * scale);
      this.canvas.height = Math.ceil(height * scale);
      this.canvas.style.width = `${this.timeline.width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.timeline.width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    lanes.forEach(([name, look, spans], row) => {
      context.globalAlpha = selected === null || selected === name ? 1 : FADED;
      this.label(context, [markOf(look), name].filter(Boolean).join(" "), row);
      context.save();
      context.beginPath();
      context.rect(LABELS, row * LANE, this.timeline.plotWidth, LANE);
      context.clip();
      for (const span of spans) this.bar(context, span, row * LANE, this.timeline.theme.requests[colourOf(look)]);
      context.restore();
    });
    context.globalAlpha = 1;
    if (hidden !== null) cover(context, this.timeline.theme, Math.max(LABELS, this.timeline.xOf(hidden)), LABELS + this.timeline.plotWidth, height);
    const x = this.timeline.xOf(step + 0.5);
    context.fillStyle = this.timeline.theme.text;
    if (x >= LABELS && x <= LABELS + this.timeline.plotWidth) context.fillRect(x - 0.75, 0, 1.5, height);
  }

  label(context, name, row) {
    context.fillStyle = this.timeline.theme.quiet;
    let text = name;
    for (let kept = name.length - 1; kept > 3 && context.measureText(text).width > LABELS - 8; kept--) text = shortened(name, kept);
    context.fillText(text, 0, row * LANE + LANE / 2);
  }

  bar(context, [phase, first, last], top, colour) {
    const from = this.timeline.xOf(first), wide = Math.max(1, this.timeline.xOf(last + 1) - from), middle = top + LANE / 2;
    if (from > this.timeline.width || from + wide < LABELS) return;
    context.fillStyle = context.strokeStyle = colour;
    if (phase === PREFILL) context.fillRect(from, middle - BAR / 2, wide, BAR);
    else if (phase === DECODE) context.fillRect(from, middle - 2, wide, 4);
    else if (phase === WAITING) this.dashes(context, from, wide, middle);
    else this.hatch(context, from, wide, middle);
  }

  dashes(context, from, wide, middle) {
    context.lineWidth = 1.5;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(from, middle);
    context.lineTo(from + wide, middle);
    context.stroke();
    context.setLineDash([]);
  }

  hatch(context, from, wide, middle) {
    context.save();
    context.beginPath();
    context.rect(from, middle - BAR / 2, wide, BAR);
    context.clip();
    context.lineWidth = 1.2;
    context.strokeRect(from + 0.6, middle - BAR / 2 + 0.6, wide - 1.2, BAR - 1.2);
    context.beginPath();
    for (let at = from - BAR; at < from + wide; at += 5) {
      context.moveTo(at, middle + BAR / 2);
      context.lineTo(at + BAR, middle - BAR / 2);
    }
    context.stroke();
    context.restore();
  }

  /** The lane at a height, or null. */
  laneAt(y) {
    return this.shown[Math.floor(y / LANE)] ?? null;
  }

  /** "eve: preempted in steps 34 to 44". now: the step after which all is hidden, or null. */
  hint(y, step, now = null) {
    const lane = this.laneAt(y);
    const span = lane?.[2].find(([, first, last]) => first <= step && step <= last);
    if (!lane) return "";
    if (!span) return `${lane[0]}: step ${step} is ${lane[2].length && step < lane[2][0][1] ? "before its arrival" : "after its end"}`;
    const [phase, first] = span, last = now === null ? span[2] : Math.min(now, span[2]);
    const steps = first === last ? `step ${first}` : `steps ${first} to ${last}`;
    return `${lane[0]}: ${PHASE_NAMES[phase]} in ${steps}`;
  }
}
