// The block map: a block has its owners' colours, side by side if it is shared; without an owner it has none. State is a
// texture: hatched is cached and free, hollow is free, crossed out the null block. Ids run left to right, then down.

import { CACHED, FREE, SHARED, USED } from "./frames.js";
import { MOST_OWNERS, shortened } from "./owners.js";
import { channels, colourOf, markOf, themeOf } from "./theme.js";

export const GLYPHS_UP_TO = 4096;
/** Maximum blocks for stripes, hatches and names. Beyond, a block is 2 x 2 pixels of an image: two owners are seen. */
const OUTLINES_FROM = 3;
/** Pixels per cell. */
const NAMES_FROM = 30;
const TEXT_FROM = 44;
const MARKS_FROM = 4, NUMBERS_FROM = 14;
/** Pixels per cell in which requests of one colour differ by lines, and by numbers. */
const TEXT_PX = 9;
const LINE_PX = 10.5;
const DIM = 0.3;
const NULL_STATE = 4;
const LARGEST_CELL = 60;
const GAP_FROM = 4;

/** The largest cells for which all blocks fit into width x height CSS pixels. */
export function gridFor(numBlocks, width, height) {
  for (let cell = LARGEST_CELL; cell > 1; cell--) {
    const columns = Math.floor(width / cell);
    const rows = Math.ceil(numBlocks / columns);
    if (columns > 0 && rows * cell <= height) return { cell, columns: Math.min(columns, numBlocks), rows, gap: cell >= GAP_FROM ? 1 : 0 };
  }
  const columns = Math.max(1, Math.floor(width));
  return { cell: 1, columns, rows: Math.ceil(numBlocks / columns), gap: 0 };
}

/** The block at CSS pixel (x, y), or null. */
export function blockAt(grid, numBlocks, x, y) {
  const column = Math.floor(x / grid.cell), row = Math.floor(y / grid.cell);
  const block = row * grid.columns + column;
  return column < 0 || column >= grid.columns || row < 0 || block >= numBlocks ? null : block;
}

export function cornerOf(grid, block) {
  return [(block % grid.columns) * grid.cell, Math.floor(block / grid.columns) * grid.cell];
}

/** The cursor after an arrow key, limited to the map. */
export function moved(grid, numBlocks, block, right, down) {
  const to = block + right + down * grid.columns;
  return to < 0 || to >= numBlocks ? block : to;
}

/** Whether cells have room for text and the model's tokenizer has spelled it. */
export function hasText(grid, chunk) {
  return (grid?.cell ?? 0) >= TEXT_FROM && Object.keys(chunk?.text ?? {}).length > 0;
}

/** A text in lines of so many characters; the last line ends with an ellipsis if more follows. */
export function linesOf(text, wide, most) {
  const characters = [...text], lines = [];
  for (let at = 0; at < characters.length && lines.length < most; at += wide) lines.push(characters.slice(at, at + wide).join(""));
  if (characters.length > wide * most) lines.push(`${[...lines.pop()].slice(0, -1).join("")}…`);
  return lines;
}

export class BlockMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.image = document.createElement("canvas");
    this.theme = themeOf(canvas);
  }

  /** Fit numBlocks into the available CSS width; the canvas takes the height it needs. */
  resize(numBlocks, width, height) {
    const size = [numBlocks, width, height, window.devicePixelRatio, this.theme.ground].join();
    if (size === this.size) return;
    this.size = size;
    this.numBlocks = numBlocks;
    this.grid = gridFor(numBlocks, width, height);
    this.scale = window.devicePixelRatio || 1;
    const { cell, columns, rows } = this.grid;
    this.canvas.width = Math.ceil(columns * cell * this.scale);
    this.canvas.height = Math.ceil(rows * cell * this.scale);
    this.canvas.style.width = `${columns * cell}px`;
    this.canvas.style.height = `${rows * cell}px`;
    this.context = this.canvas.getContext("2d");
    this.image.width = 2 * columns;
    this.image.height = 2 * rows;
    this.pixels = this.image.getContext("2d").createImageData(2 * columns, 2 * rows);
    this.words = new Uint32Array(this.pixels.data.buffer);
    this.palette = paletteOf(this.theme);
    this.net = cell >= 4 && numBlocks > GLYPHS_UP_TO ? netOf(this.grid, this.scale, this.theme) : null;
    this.sprites = numBlocks <= GLYPHS_UP_TO ? spritesOf(cell * this.scale, this.theme) : null;
  }

  /** owners: an `Owners` of this step, or null while it is unknown.
   *  marks: {texts: text per block or null, changed, hits: block ids, given: block id -> look of the request that gave it up, own: Set of the selected request's blocks or null, block, cursor, pulse: 0 to 1} */
  draw(states, owners, marks) {
    const context = this.context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.sprites) this.drawCells(states, owners, marks.own, marks.texts ?? null);
    else this.drawPixels(states, owners, marks.own);
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (this.grid.cell >= OUTLINES_FROM) {
      if (marks.own) this.outline(marks.own, this.theme.text, 1, 0);
      this.outline(marks.changed, this.theme.text, this.grid.cell >= NAMES_FROM ? 2 : 1, 0);
      if (this.grid.cell >= NAMES_FROM) this.corners(marks.given);
      if (marks.pulse < 1) this.ripple(marks.changed, marks.pulse);
      this.dots(marks.hits, marks.pulse);
    }
    if (marks.cursor !== null) this.frame(marks.cursor, this.theme.quiet, 1, 2, [3, 2]);
    if (marks.block !== null) this.frame(marks.block, this.theme.text, 2, 1, []);
  }

  drawCells(states, owners, own, texts) {
    const { context, scale, theme } = this;
    const { cell, columns, gap } = this.grid;
    const size = cell * scale, side = size - (gap ? Math.max(1, Math.round(size / 16)) : 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.textBaseline = "middle";
    for (let block = 0; block < states.length; block++) {
      const x = (block % columns) * size, y = Math.floor(block / columns) * size, state = block ? states[block] : NULL_STATE;
      context.globalAlpha = own && !own.has(block) ? DIM : 1;
      if (state === USED || state === SHARED) this.drawOwned(block, owners, x, y, side, Boolean(texts));
      else context.drawImage(this.sprites[state], x, y);
      if (texts?.[block]) this.drawText(texts[block], this.inkOn(block, owners), x, y, side);
    }
    context.globalAlpha = 1;
  }

  /** Its owners' colours side by side, on large cells with the name of the owner or the number of them. */
  drawOwned(block, owners, x, y, side, isAbove) {
    const { context, theme } = this, count = owners?.counts[block] ?? 0;
    const stripes = Math.min(count, MOST_OWNERS);
    if (!count) {
      context.fillStyle = theme.unknown;
      context.fillRect(x, y, side, side);
      return;
    }
    for (let stripe = 0; stripe < stripes; stripe++) {
      const look = owners.looks[block * MOST_OWNERS + stripe], left = x + (stripe * side) / stripes;
      context.fillStyle = theme.requests[colourOf(look)];
      context.fillRect(left, y, side / stripes, side);
      this.drawMark(markOf(look), left, y, side / stripes, side);
    }
    if (this.grid.cell < NAMES_FROM) return;
    const label = count > 1 ? `×${count}` : owners.nameOf(block);
    const most = Math.floor(this.grid.cell / 7), fits = label.length <= most ? label : shortened(label, most - 1);
    const middle = isAbove ? y + 9 * this.scale : y + side / 2, pad = 3 * this.scale;
    context.font = `${Math.round(11 * this.scale)}px system-ui, sans-serif`;
    if (count > 1) {
      context.fillStyle = theme.ground;
      context.fillRect(x + side / 2 - 12 * this.scale, middle - 8 * this.scale, 24 * this.scale, 16 * this.scale);
      context.fillStyle = theme.text;
    } else context.fillStyle = theme.inks[colourOf(owners.looks[block * MOST_OWNERS])];
    context.textAlign = count > 1 ? "center" : "left";
    context.fillText(fits, count > 1 ? x + side / 2 : x + pad, middle, side - pad);
  }

  /** The number of a request whose colour others have too: at the lower left, or in a small cell as many lines. */
  drawMark(mark, x, y, wide, side) {
    if (!mark || this.grid.cell < MARKS_FROM) return;
    const { context, scale, theme } = this;
    context.fillStyle = theme.ground;
    if (this.grid.cell < NUMBERS_FROM || wide < 7 * scale) {
      const thick = Math.max(1, Math.round(scale));
      for (let line = 1; line < Number(mark) && 2 * line * thick < side; line++) context.fillRect(x, y + side - 2 * line * thick, wide, thick);
      return;
    }
    const px = 9 * scale, box = (3 + 6 * mark.length) * scale;
    context.fillRect(x, y + side - px - scale, Math.min(box, wide), px + scale);
    context.font = `${px}px ui-monospace, Menlo, Consolas, monospace`;
    context.fillStyle = theme.text;
    context.textAlign = "left";
    context.fillText(mark, x + scale, y + side - px / 2, wide - scale);
  }

  /** The colour of text that is legible on all stripes of a block; null if there is none. */
  inkOn(block, owners) {
    const stripes = Math.min(owners?.counts[block] ?? 0, MOST_OWNERS);
    const inks = new Set(Array.from({ length: stripes }, (_, stripe) => this.theme.inks[colourOf(owners.looks[block * MOST_OWNERS + stripe])]));
    return inks.size === 1 ? [...inks][0] : null;
  }

  /** Below the owner's name. ink: the colour of the text, or null for a panel under it. */
  drawText(text, ink, x, y, side) {
    const { context, scale, theme } = this, pad = 3 * scale, top = y + 17 * scale, bottom = y + side - pad;
    const wide = Math.floor((this.grid.cell - 8) / (0.61 * TEXT_PX)), most = Math.floor((bottom - top) / (LINE_PX * scale));
    if (ink === null) {
      context.fillStyle = theme.ground;
      context.fillRect(x + pad / 2, top - scale, side - pad, bottom - top + scale);
    }
    context.fillStyle = ink ?? theme.text;
    context.font = `${TEXT_PX * scale}px ui-monospace, Menlo, Consolas, monospace`;
    context.textAlign = "left";
    linesOf(text, wide, most).forEach((line, at) => context.fillText(line, x + pad, top + (at + 0.5) * LINE_PX * scale, side - pad));
  }

  drawPixels(states, owners, own) {
    const { words, palette } = this, { columns } = this.grid, wide = 2 * columns;
    for (let block = 0; block < states.length; block++) {
      const state = block ? states[block] : NULL_STATE;
      const shades = own && !own.has(block) ? palette.dim : palette.bright;
      let one = shades.states[state], other = one;
      if (state === CACHED) other = shades.states[FREE];
      else if ((state === USED || state === SHARED) && owners?.counts[block]) {
        one = other = shades.requests[colourOf(owners.looks[block * MOST_OWNERS])];
        if (owners.counts[block] > 1) other = shades.requests[colourOf(owners.looks[block * MOST_OWNERS + 1])];
      }
      const at = 2 * Math.floor(block / columns) * wide + 2 * (block % columns);
      words[at] = words[at + wide + 1] = one;
      words[at + 1] = words[at + wide] = other;
    }
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    if (this.net) this.context.drawImage(this.net, 0, 0);
  }

  /** In the lower right corner of a block the colour of the request that gave it up in this step. */
  corners(given) {
    const { context, grid, theme } = this, leg = grid.cell * 0.34;
    for (const [block, look] of given) {
      const [x, y] = cornerOf(grid, block).map((at) => at + grid.cell - 4);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - leg, y);
      context.lineTo(x, y - leg);
      context.closePath();
      context.fillStyle = theme.requests[colourOf(look)];
      context.fill();
      context.strokeStyle = theme.ground;
      context.lineWidth = 1;
      context.stroke();
      if (!markOf(look)) continue;
      context.font = `${Math.round(leg * 0.55)}px system-ui, sans-serif`;
      context.fillStyle = theme.inks[colourOf(look)];
      context.textAlign = "right";
      context.textBaseline = "alphabetic";
      context.fillText(markOf(look), x - 2, y - 2, leg / 2);
    }
  }

  /** Rings around what changed, which shrink onto their cells as pulse goes from 0 to 1. */
  ripple(changed, pulse) {
    this.context.globalAlpha = 1 - pulse;
    this.outline(changed, this.theme.text, 2, 4 * (1 - pulse));
    this.context.globalAlpha = 1;
  }

  /** A dot in a corner of every hit, large at first. */
  dots(hits, pulse) {
    const { context, grid, theme } = this, radius = Math.max(1, Math.min(5, grid.cell / 9)) * (1 + 1.5 * (1 - pulse));
    for (const block of hits) {
      const [x, y] = cornerOf(grid, block);
      context.beginPath();
      context.arc(x + grid.cell - grid.gap - radius - 2, y + radius + 2, radius, 0, 2 * Math.PI);
      context.fillStyle = theme.text;
      context.strokeStyle = theme.ground;
      context.lineWidth = 1.5;
      context.fill();
      context.stroke();
    }
  }

  outline(blocks, colour, width, margin) {
    const { context, grid } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash([]);
    context.beginPath();
    const side = grid.cell - grid.gap - width + 2 * margin;
    for (const block of blocks) {
      const [x, y] = cornerOf(grid, block);
      if (side > 0) context.rect(x + width / 2 - margin, y + width / 2 - margin, side, side);
    }
    context.stroke();
  }

  frame(block, colour, width, margin, dash) {
    const { context, grid } = this;
    const [x, y] = cornerOf(grid, block);
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    const side = grid.cell - grid.gap + 2 * margin;
    context.strokeRect(x - margin, y - margin, side, side);
    context.setLineDash([]);
  }
}

/** Lines between cells, drawn once and placed over each picture. */
function netOf(grid, scale, theme) {
  const net = document.createElement("canvas");
  net.width = grid.columns * grid.cell * scale;
  net.height = grid.rows * grid.cell * scale;
  const context = net.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = theme.ground;
  for (let column = 1; column <= grid.columns; column++) context.fillRect(column * grid.cell - 1, 0, 1, grid.rows * grid.cell);
  for (let row = 1; row <= grid.rows; row++) context.fillRect(0, row * grid.cell - 1, grid.columns * grid.cell, 1);
  return net;
}

/** Pictures of blocks without an owner, by state. */
function spritesOf(size, theme) {
  const sprites = {};
  for (const state of [FREE, CACHED, NULL_STATE]) {
    const sprite = (sprites[state] = document.createElement("canvas"));
    sprite.width = sprite.height = Math.ceil(size);
    drawGlyph(sprite.getContext("2d"), state, size - Math.max(1, Math.round(size / 16)), theme);
  }
  return sprites;
}

function drawGlyph(context, state, side, theme) {
  context.lineWidth = Math.max(1, side / 20);
  context.strokeStyle = state === CACHED ? theme.cached : theme.hollow;
  context.strokeRect(context.lineWidth / 2, context.lineWidth / 2, side - context.lineWidth, side - context.lineWidth);
  if (state === NULL_STATE) line(context, 0, side, side, 0);
  if (state !== CACHED) return;
  context.beginPath();
  context.rect(0, 0, side, side);
  context.clip();
  context.lineWidth = Math.max(1, side / 10);
  for (let at = -side; at < side; at += Math.max(3, side / 4)) line(context, at, side, at + side, 0);
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

/** Colours as canvas pixels, bright and dim: {states: [free, cached, used, shared, null block], requests} */
function paletteOf(theme) {
  const shades = (strength) => ({
    states: [theme.hollow, theme.cached, theme.unknown, theme.unknown].map((colour, i) => word(colour, theme, i ? strength : 0.5 * strength)).concat(word(theme.ground, theme)),
    requests: theme.requests.map((colour) => word(colour, theme, strength)),
  });
  return { bright: shades(1), dim: shades(DIM) };
}

/** A colour over the ground in the format of canvas pixels: four bytes, red first. */
function word(colour, theme, strength = 1) {
  const ground = channels(theme.ground);
  const [red, green, blue] = channels(colour).map((value, i) => Math.round(value * strength + ground[i] * (1 - strength)));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
