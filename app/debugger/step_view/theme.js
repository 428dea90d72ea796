// Colours of the canvases. The style sheet has them as custom properties, so that a theme is said once.

export const NUM_COLOURS = 7;
/** Colours of requests; `request_colours.py` hands out looks: a colour, and a number where requests share it. */
export const GREY = 0xffff;
/** In place of the look of a request that is out of focus. */

/** Index of a look's colour in `theme.requests` and `theme.inks`. */
export function colourOf(look) {
  return look === GREY ? NUM_COLOURS : look % NUM_COLOURS;
}

/** The number that tells a request from others of its colour; "" for the first. */
export function markOf(look) {
  return look === GREY || look < NUM_COLOURS ? "" : `${Math.floor(look / NUM_COLOURS) + 1}`;
}

const DARK = {
  ground: "#0b1020", panel: "#111827", line: "#263043", quiet: "#9ca3af", text: "#e5e7eb", hollow: "#3b475e", unknown: "#64748b", cached: "#8593a8", grey: "#465268",
  requests: ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2"],
};

/** -> {ground, panel, line, quiet, text, hollow, unknown, cached, requests: colours by index, the last one grey, inks} */
export function themeOf(element) {
  const style = element ? getComputedStyle(element) : null;
  const said = (name, other) => style?.getPropertyValue(`--${name}`).trim() || other;
  const theme = {};
  for (const name of ["ground", "panel", "line", "quiet", "text", "hollow", "unknown", "cached", "grey"]) theme[name] = said(name, DARK[name]);
  theme.requests = [...DARK.requests.map((colour, i) => said(`request-${i}`, colour)), theme.grey];
  theme.inks = theme.requests.map((colour) => (luminance(colour) > 0.2 ? "#0b1020" : "#ffffff"));
  return theme;
}

export function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** Relative luminance, from 0 to 1. Source: WCAG 2.2. */
export function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
