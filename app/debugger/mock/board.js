// A whiteboard: strokes as lists x, y, x, y ... in units of its 640 x 400 frame. Sends `drawn` = all strokes, a moment after
// the last change.

const WAIT_MS = 700;
const REACH = 12;

/** Strokes without those that pass within reach of a point. */
export function erased(strokes, x, y, reach = REACH) {
  const near = (stroke) => {
    for (let at = 0; at < stroke.length; at += 2) {
      const [x0, y0] = [stroke[at], stroke[at + 1]];
      const [dx, dy] = at + 2 < stroke.length ? [stroke[at + 2] - x0, stroke[at + 3] - y0] : [0, 0];
      const part = Math.max(0, Math.min(1, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1)));
      if (Math.hypot(x - x0 - part * dx, y - y0 - part * dy) <= reach) return true;
    }
    return false;
  };
  return strokes.filter((stroke) => !near(stroke));
}

export default function ({ data, parentElement, setTriggerValue }) {
  const board = parentElement.querySelector(".board");
  const svg = board.querySelector("svg");
  board.state = board.state?.session === data.session ? board.state : { session: data.session, strokes: data.strokes, tool: "draw" };
  const state = board.state;
  let line = null;

  const points = (stroke) => (stroke.length === 2 ? [...stroke, stroke[0] + 0.1, stroke[1]] : stroke).join(" ");
  const add = (stroke) => {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    drawn.setAttribute("points", points(stroke));
    svg.append(drawn);
    return drawn;
  };
  const redraw = () => {
    svg.replaceChildren();
    state.strokes.forEach(add);
    svg.dataset.tool = state.tool;
    for (const button of board.querySelectorAll("[data-tool]")) button.setAttribute("aria-pressed", button.dataset.tool === state.tool);
  };
  const change = (strokes) => {
    state.strokes = strokes;
    clearTimeout(board.timer);
    board.timer = setTimeout(() => setTriggerValue("drawn", state.strokes), WAIT_MS);
  };
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return [Math.round(((event.clientX - box.left) * 640) / box.width), Math.round(((event.clientY - box.top) * 400) / box.height)];
  };
  const move = (event) => {
    const [x, y] = at(event);
    if (state.tool === "erase") {
      const left = erased(state.strokes, x, y);
      if (left.length === state.strokes.length) return;
      change(left);
      redraw();
    } else if (line) {
      line.stroke.push(x, y);
      line.drawn.setAttribute("points", points(line.stroke));
    }
  };
  svg.onpointerdown = (event) => {
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
    svg.onpointermove = move;
    if (state.tool === "draw") line = { stroke: at(event), drawn: null };
    if (line) line.drawn = add(line.stroke);
    else move(event);
  };
  svg.onpointerup = svg.onpointercancel = () => {
    svg.onpointermove = null;
    if (line) change([...state.strokes, line.stroke]);
    line = null;
  };
  board.querySelector(".tools").onclick = ({ target }) => {
    if (target.dataset.tool) state.tool = target.dataset.tool;
    if (target.dataset.do) change(target.dataset.do === "undo" ? state.strokes.slice(0, -1) : []);
    redraw();
  };
  redraw();
}
