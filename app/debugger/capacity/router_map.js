// Which request went to which replica, and why: a lane per replica with its decisions, queue and KV cache over time.
//
//   data = { choices: [[time, request, prefix, prompt, replica, kind, reason, [[replica, load, hit], ...], colour], ...],
//          times: [...], running, waiting, kv: a list of levels per replica (kv: null if unknown), end: seconds,
//          names: [name of each replica], facts: [[text, ...] of each], unit of the hits, alt, hint }
//
// Above in a lane: a tick for each request that was sent there, in the colour of its reason or prefix. Below: requests
// running and, on top, waiting; a line for the KV cache in use. Hovering shows the nearest decision, with the replicas
// as the router saw them. Dragging zooms, a double click shows everything. Arrows walk over the decisions.

const LEFT = 118;
const RIGHT = 10;
const LANES = 520; // height of all lanes, where that leaves each between the bounds
const [LEAST_LANE, MOST_LANE] = [66, 130];
const TICKS = 17;
const AXIS = 20;
const NEAR = 6;

/** Index of the choice nearest to a time among those of a replica (null: of all); -1 without any. */
export function nearest(choices, time, replica) {
  let best = -1;
  choices.forEach((choice, index) => {
    if (replica !== null && choice[4] !== replica) return;
    if (best < 0 || Math.abs(choice[0] - time) < Math.abs(choices[best][0] - time)) best = index;
  });
  return best;
}

/** Index of the last sample at a time or before it. */
export function sampleAt(times, time) {
  let low = 0;
  let high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= time) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Round seconds in a range, at most about `wanted`. */
export function seconds(first, last, wanted) {
  const least = (last - first) / wanted;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * (1 - 1e-9));
  const found = [];
  for (let count = Math.ceil(first / step - 1e-9); count * step <= last + 1e-9; count += 1) found.push(Number((count * step).toPrecision(10)));
  return found;
}

/** A decision in words, with the replicas that the router looked at. */
export function sentence([time, request, prefix, prompt, replica, , reason, seen], { names, unit }) {
  const about = [prompt ? `${prompt.toLocaleString("en")} tokens` : "", prefix < 0 ? "" : `prefix ${prefix}`].filter(Boolean).join(", ");
  const lines = seen.map(([index, load, hit]) => `${index === replica ? "→" : " "} ${names[index]}: ${load} unfinished, ${hit} ${unit} cached`);
  return `request ${request}${about ? ` (${about})` : ""} at ${time.toFixed(3)} s went to ${names[replica]}: ${reason}\n${lines.join("\n")}`;
}

function drawLane(pen, data, lane, view, said) {
  const { x, top, most, first, last } = view;
  const floor = top(lane) + view.lane - 6;
  const room = view.lane - TICKS - 12;
  pen.fillStyle = said("--line");
  pen.fillRect(LEFT, floor, view.width - LEFT - RIGHT, 1);
  pen.fillStyle = said("--text");
  pen.textAlign = "left";
  pen.font = "600 11.5px ui-monospace, Menlo, Consolas, monospace";
  pen.fillText(data.names[lane].slice(0, 15), 8, top(lane) + 14);
  pen.font = "10.5px ui-monospace, Menlo, Consolas, monospace";
  pen.fillStyle = said("--quiet");
  data.facts[lane].forEach((fact, index) => pen.fillText(fact, 8, top(lane) + 29 + 13 * index));
  const layers = [["--spread", "--blue", () => 0, data.running[lane]], ["--orange", "--orange", (index) => data.running[lane][index], data.waiting[lane]]];
  data.times.forEach((time, index) => {
    const until = data.times[index + 1] ?? data.end;
    if (until < first || time > last) return;
    const left = Math.max(LEFT, x(time));
    const wide = Math.min(view.width - RIGHT, x(until)) - left + 0.5;
    for (const [fill, , base, levels] of layers) {
      const height = (levels[index] / most) * room;
      pen.fillStyle = said(fill);
      pen.fillRect(left, floor - (base(index) / most) * room - height, wide, height);
    }
    if (!data.kv) return;
    pen.fillStyle = said("--green");
    pen.fillRect(left, floor - data.kv[lane][index] * room - 1, wide, 2);
  });
}

function drawChoices(pen, data, view, said, current) {
  data.choices.forEach((choice, index) => {
    const [time, , , , replica] = choice;
    if (time < view.first || time > view.last) return;
    pen.fillStyle = said(choice[8]);
    pen.fillRect(view.x(time) - 1, view.top(replica) + 3, 2, TICKS - 4);
    if (index === current) pen.fillRect(view.x(time) - 3, view.top(replica) + 1, 6, TICKS);
  });
  if (current < 0) return;
  const [time, , , , replica, , , seen] = data.choices[current];
  const at = view.x(time);
  pen.fillStyle = said("--text");
  pen.fillRect(at - 0.5, 0, 1, view.height - AXIS);
  pen.font = "10.5px ui-monospace, Menlo, Consolas, monospace";
  const isRight = at > view.width - 150;
  pen.textAlign = isRight ? "right" : "left";
  for (const [index, load, hit] of seen) {
    const text = `${index === replica ? "chosen: " : ""}${load} unfinished, ${hit} cached`;
    const place = at + (isRight ? -6 : 6);
    pen.lineWidth = 4;
    pen.strokeStyle = said("--panel");
    pen.strokeText(text, place, view.top(index) + 33);
    pen.fillStyle = said(index === replica ? "--notice" : "--text");
    pen.fillText(text, place, view.top(index) + 33);
  }
}

export default function ({ data, parentElement }) {
  const frame = parentElement.querySelector(".routes");
  const canvas = frame.querySelector("canvas");
  const tip = frame.querySelector(".tip");
  const status = frame.querySelector(".status");
  const numLanes = data.names.length;
  const laneHeight = Math.max(LEAST_LANE, Math.min(MOST_LANE, Math.floor(LANES / numLanes)));
  const height = numLanes * laneHeight + AXIS;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("aria-label", data.alt);
  status.textContent = data.hint;
  const most = Math.max(1, ...data.running.map((levels, lane) => Math.max(...levels.map((level, index) => level + data.waiting[lane][index]))));
  let [first, last] = [0, data.end];
  let current = -1;
  let from = null;
  let drag = null;
  let view = null;
  const draw = () => {
    const width = Math.max(240, canvas.clientWidth);
    const ratio = globalThis.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const said = (name) => style.getPropertyValue(name) || "#808080";
    view = { width, height, most, first, last, lane: laneHeight, top: (lane) => lane * laneHeight, x: (time) => LEFT + ((time - first) / (last - first)) * (width - LEFT - RIGHT) };
    for (let lane = 0; lane < numLanes; lane += 1) drawLane(pen, data, lane, view, said);
    drawChoices(pen, data, view, said, current);
    if (drag) {
      pen.globalAlpha = 0.18;
      pen.fillStyle = said("--text");
      pen.fillRect(Math.min(...drag), 0, Math.abs(drag[1] - drag[0]), height - AXIS);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = said("--quiet");
    pen.font = "10.5px ui-monospace, Menlo, Consolas, monospace";
    pen.textAlign = "center";
    for (const second of seconds(first, last, Math.max(2, width / 110))) pen.fillText(`${second} s`, view.x(second), height - 5);
  };
  const show = (index, text, x, y) => {
    current = index;
    tip.hidden = !text;
    tip.textContent = text;
    draw();
    if (!text) return;
    const isRight = x > view.width / 2;
    tip.style.left = `${Math.max(0, isRight ? x - tip.offsetWidth - 14 : x + 14)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 40, height - tip.offsetHeight))}px`;
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const timeAt = (x) => first + ((Math.max(LEFT, Math.min(view.width - RIGHT, x)) - LEFT) / (view.width - LEFT - RIGHT)) * (last - first);
  canvas.onpointerdown = (event) => {
    [from] = place(event);
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    const [x, y] = place(event);
    if (from !== null && Math.abs(x - from) > 3) {
      drag = [from, x];
      return show(-1, "");
    }
    const lane = Math.floor(y / laneHeight);
    if (x < LEFT || lane >= numLanes) return show(-1, "");
    const index = nearest(data.choices, timeAt(x), lane);
    if (index >= 0 && Math.abs(view.x(data.choices[index][0]) - x) <= NEAR) return show(index, sentence(data.choices[index], data), x, y);
    const at = sampleAt(data.times, timeAt(x));
    const [running, waiting] = [data.running[lane][at], data.waiting[lane][at]];
    const levels = data.kv ? `${running} running, ${waiting} waiting, KV cache ${(100 * data.kv[lane][at]).toFixed(0)} %` : `${running} unfinished`;
    return show(-1, `${data.names[lane]} at ${data.times[at].toFixed(2)} s: ${levels}`, x, y);
  };
  canvas.onpointerup = (event) => {
    const [x] = place(event);
    if (drag) [first, last] = [timeAt(Math.min(from, x)), timeAt(Math.max(from, x))];
    if (last - first < 1e-3) [first, last] = [0, data.end];
    from = drag = null;
    draw();
  };
  canvas.ondblclick = () => {
    [first, last] = [0, data.end];
    draw();
  };
  canvas.onpointerleave = () => show(-1, "");
  canvas.onblur = () => show(-1, "");
  canvas.onkeydown = (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way || !data.choices.length) return;
    const index = Math.max(0, Math.min(data.choices.length - 1, current + way * (event.shiftKey ? 10 : 1)));
    const [time, , , , replica] = data.choices[index];
    if (time < first || time > last) [first, last] = [0, data.end];
    draw();
    show(index, sentence(data.choices[index], data), view.x(time), view.top(replica));
    status.textContent = sentence(data.choices[index], data).split("\n")[0];
    event.preventDefault();
    event.stopPropagation();
  };
  draw();
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  return () => observer.disconnect();
}
