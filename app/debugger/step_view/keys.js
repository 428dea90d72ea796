// Keyboard commands. Each has a button too.

export const KEYS = [
  ["Space", "play or pause"],
  ["← →  or  [ ]  or  , .", "one step back, one step forward; ten with Shift [ ]"],
  ["Home End", "first and last step"],
  ["b B", "next and previous breakpoint"],
  ["Shift ← ↑ ↓ →", "move the cursor on the block map"],
  ["Enter", "select the block under the cursor"],
  ["n p", "next and previous event of the selected block"],
  ["+ -", "zoom the timeline in and out; also Ctrl and the wheel, Shift and the wheel move it"],
  ["/", "find a request"],
  ["Esc", "select nothing"],
  ["?", "this list"],
];

const COMMANDS = {
  " ": ["play"],
  "[": ["step", -1],
  ",": ["step", -1],
  "]": ["step", 1],
  ".": ["step", 1],
  "{": ["step", -10],
  "<": ["step", -10],
  "}": ["step", 10],
  ">": ["step", 10],
  Home: ["first"],
  End: ["last"],
  b: ["break", 1],
  B: ["break", -1],
  ArrowLeft: ["step", -1],
  ArrowRight: ["step", 1],
  Enter: ["pick"],
  n: ["blockEvent", 1],
  p: ["blockEvent", -1],
  "+": ["zoom", 2],
  "-": ["zoom", 0.5],
  "/": ["find"],
  Escape: ["clear"],
  "?": ["help"],
};

const CURSOR = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** A keydown event -> [command, ...arguments], or null for other keys.
 *  target: the innermost element, which may handle the key itself. */
export function commandOf(event, target) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  if (isTyping(target)) return null;
  if (event.shiftKey && CURSOR[event.key]) return ["cursor", ...CURSOR[event.key]];
  const command = COMMANDS[event.key];
  if (!command) return null;
  if ((event.key === " " || event.key === "Enter") && isPressable(target)) return null;
  const [name, ...rest] = command;
  if (name === "step" && event.shiftKey) return [name, 10 * Math.sign(rest[0])];
  return [name, ...rest];
}

function isTyping(target) {
  const name = target?.tagName ?? "";
  const typed = name === "INPUT" && !["checkbox", "radio", "button"].includes(target.type);
  return typed || name === "TEXTAREA" || name === "SELECT" || Boolean(target?.isContentEditable);
}

function isPressable(target) {
  const role = target?.getAttribute?.("role");
  return ["BUTTON", "A", "SUMMARY", "INPUT"].includes(target?.tagName) || role === "button" || role === "tab";
}
