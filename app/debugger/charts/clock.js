// A clock of something with a time limit: it ticks here, and the server measures.
//
//   data = { at, name, total: {spent, limit}, step: {spent, limit} or null, runs, why, over }      in seconds

const AMBER = 0.8;

/** 754 becomes 12:34. */
export function clockTime(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${String(Math.floor(whole / 60)).padStart(2, "0")}:${String(whole % 60).padStart(2, "0")}`;
}

/** How full a limit is: "", "amber" from 80 %, "over" from 100 %. */
export function level(spent, limit) {
  return spent >= limit ? "over" : spent >= AMBER * limit ? "amber" : "";
}

const BEGAN = new Map();
const MOST_KEPT = 16;

/** When the browser first got a measurement: the component is drawn again, with the same one, for another theme. */
export function beganAt(at, now) {
  if (!BEGAN.has(at)) BEGAN.set(at, now);
  if (BEGAN.size > MOST_KEPT) BEGAN.delete(BEGAN.keys().next().value);
  return BEGAN.get(at);
}

function row(frame, name) {
  const line = document.createElement("div");
  line.className = "line";
  line.innerHTML = "<span></span><b></b><small></small><i><u></u></i>";
  line.querySelector("span").textContent = name;
  frame.append(line);
  return (spent, limit) => {
    line.dataset.level = level(spent, limit);
    const time = clockTime(spent);
    const now = line.querySelector("b");
    if (now.textContent === time) return;
    now.textContent = time;
    line.querySelector("small").textContent = ` of ${clockTime(limit)}`;
    line.querySelector("u").style.width = `${Math.min(100, (100 * spent) / limit)}%`;
  };
}

export default function ({ data, parentElement }) {
  const frame = parentElement.querySelector(".clock");
  frame.replaceChildren();
  const rows = [[row(frame, data.name), data.total]];
  if (data.step) rows.push([row(frame, "This step"), data.step]);
  const told = document.createElement("p");
  told.setAttribute("role", "status");
  frame.append(told);
  const began = beganAt(data.at, performance.now());
  const tick = () => {
    const passed = data.runs ? (performance.now() - began) / 1000 : 0;
    for (const [show, { spent, limit }] of rows) show(spent + passed, limit);
    const step = data.step && level(data.step.spent + passed, data.step.limit);
    const words = data.why || (step === "over" ? "over the step's time: come to the end" : step ? "80 % of the step's time is used" : level(data.total.spent + passed, data.total.limit) === "over" ? data.over : "");
    if (told.textContent !== words) told.textContent = words;
    told.hidden = !data.step && !words;
  };
  tick();
  const timer = setInterval(tick, 250);
  return () => clearInterval(timer);
}
