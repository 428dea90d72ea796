// A tree of figures: each opens into its formula, its numbers, and the figures in it.
// data = { root, figures: { name: { title, shown, formula, filled, source, leaves_out, parents } } }

/** The rows of one figure's explanation, without empty ones. */
export function explanation(figure) {
  return [
    ["formula", figure.formula],
    ["here", figure.filled],
    ["leaves out", figure.leaves_out],
    ["source", figure.source],
  ].filter(([, text]) => text);
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function branch(figures, path, open) {
  const figure = figures[path.at(-1)];
  const key = path.join("/");
  const details = element("details");
  const summary = element("summary");
  summary.append(element("span", "title", figure.title), element("span", "value", figure.shown));
  details.append(summary);
  const fill = () => {
    if (details.childElementCount > 1) return;
    const list = element("dl");
    for (const [term, text] of explanation(figure)) {
      list.append(element("dt", "", term), element("dd", term === "leaves out" ? "prose" : "", text));
    }
    details.append(list);
    for (const parent of figure.parents) details.append(branch(figures, [...path, parent], open));
  };
  if (open.has(key)) {
    details.open = true;
    fill();
  }
  details.addEventListener("toggle", () => {
    if (details.open) {
      open.add(key);
      fill();
    } else open.delete(key);
  });
  return details;
}

export default function (component) {
  const { data, parentElement } = component;
  const host = parentElement.querySelector(".tree");
  host.openPaths ??= new Set();
  if (host.root !== data.root) host.openPaths.add(data.root); // another tree, or the first one
  host.root = data.root;
  host.replaceChildren(branch(data.figures, [data.root], host.openPaths));
}
