// The block map: states by colour, on small maps by a glyph too. Ids run left to right, then down.

import { CACHED, FREE, SHARED, USED } from "./frames.js";

export const COLOURS = { used: "#0072B2", shared: "#E69F00", cached: "#009E73", free: "#1c2537", changed: "#F0E442" };
const GROUND = "#0b1020";
const BY_STATE = [COLOURS.free, COLOURS.cached, COLOURS.used, COLOURS.shared];
export const GLYPHS_UP_TO = 4096;
/** Maximum blocks for glyphs. */
const OUTLINES_FROM = 3;
/** Pixels per cell. */
const DIM = 0.3;
const NULL_STATE = 4;
const LARGEST_CELL = 44;
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

export class BlockMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.image = document.createElement("canvas");
  }

  /** Fit numBlocks into the available CSS width; the canvas takes the height it needs. */
  resize(numBlocks, width, height) {
    const size = [numBlocks, width, height, window.devicePixelRatio].join();
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
    this.image.width = columns;
    this.image.height = rows;
    this.pixels = this.image.getContext("2d").createImageData(columns, rows);
    this.words = new Uint32Array(this.pixels.data.buffer);
    this.net = cell >= 4 && numBlocks > GLYPHS_UP_TO ? netOf(this.grid, this.scale) : null;
    this.sprites = numBlocks <= GLYPHS_UP_TO ? spritesOf(cell * this.scale) : null;
  }

  /** marks: {changed: block ids, own: Set of the selected request's blocks or null, block, cursor} */
  draw(states, marks) {
    const context = this.context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.sprites) this.drawSprites(states, marks.own);
    else this.drawPixels(states, marks);
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (this.grid.cell >= OUTLINES_FROM) {
      if (marks.own) this.outline(marks.own, "#e5e7eb", 1);
      this.outline(marks.changed, COLOURS.changed, 1);
    }
    if (marks.cursor !== null) this.frame(marks.cursor, "#9ca3af", 1, 2, [3, 2]);
    if (marks.block !== null) this.frame(marks.block, "#ffffff", 2, 1, []);
  }

  drawSprites(states, own) {
    const { context, scale } = this;
    const { cell, columns } = this.grid;
    context.fillStyle = GROUND;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    for (let block = 0; block < states.length; block++) {
      const sprite = this.sprites[block ? states[block] : NULL_STATE];
      context.globalAlpha = own && !own.has(block) ? DIM : 1;
      context.drawImage(sprite, (block % columns) * cell * scale, Math.floor(block / columns) * cell * scale);
    }
    context.globalAlpha = 1;
  }

  drawPixels(states, marks) {
    const words = this.words, own = marks.own;
    const bright = PALETTE, dim = own ? DIMMED : PALETTE;
    for (let block = 0; block < states.length; block++) words[block] = dim[states[block]];
    if (own) for (const block of own) words[block] = bright[states[block]];
    if (this.grid.cell < OUTLINES_FROM) for (const block of marks.changed) words[block] = CHANGED;
    words[0] = NOTHING;
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
    if (this.net) this.context.drawImage(this.net, 0, 0);
  }

  outline(blocks, colour, width) {
    const { context, grid } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash([]);
    context.beginPath();
    const side = grid.cell - grid.gap - width;
    for (const block of blocks) {
      const [x, y] = cornerOf(grid, block);
      context.rect(x + width / 2, y + width / 2, side, side);
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
function netOf(grid, scale) {
  const net = document.createElement("canvas");
  net.width = grid.columns * grid.cell * scale;
  net.height = grid.rows * grid.cell * scale;
  const context = net.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = GROUND;
  for (let column = 1; column <= grid.columns; column++) context.fillRect(column * grid.cell - 1, 0, 1, grid.rows * grid.cell);
  for (let row = 1; row <= grid.rows; row++) context.fillRect(0, row * grid.cell - 1, grid.columns * grid.cell, 1);
  return net;
}

/** One small picture per state: solid used, dot shared, hatch cached, hollow free, crossed out the null block. */
function spritesOf(size) {
  return [FREE, CACHED, USED, SHARED, NULL_STATE].map((state) => {
    const sprite = document.createElement("canvas");
    sprite.width = sprite.height = Math.ceil(size);
    const context = sprite.getContext("2d");
    const side = size - Math.max(1, Math.round(size / 16));
    drawGlyph(context, state, side);
    return sprite;
  });
}

function drawGlyph(context, state, side) {
  const middle = side / 2;
  context.lineWidth = Math.max(1, side / 14);
  if (state === FREE || state === NULL_STATE) {
    context.strokeStyle = "#3b475e";
    context.strokeRect(context.lineWidth / 2, context.lineWidth / 2, side - context.lineWidth, side - context.lineWidth);
    if (state === NULL_STATE) line(context, 0, side, side, 0);
    return;
  }
  context.fillStyle = BY_STATE[state];
  context.fillRect(0, 0, side, side);
  if (state === SHARED) {
    context.fillStyle = GROUND;
    context.beginPath();
    context.arc(middle, middle, Math.max(1, side / 5), 0, 2 * Math.PI);
    context.fill();
  }
  if (state === CACHED) {
    context.strokeStyle = GROUND;
    context.save();
    context.beginPath();
    context.rect(0, 0, side, side);
    context.clip();
    for (let at = -side; at < side; at += Math.max(3, side / 3)) line(context, at, side, at + side, 0);
    context.restore();
  }
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

/** A colour in the format of canvas pixels: four bytes, red first. */
function word(colour, strength = 1) {
  const ground = channels(GROUND), own = channels(colour);
  const [red, green, blue] = own.map((value, i) => Math.round(value * strength + ground[i] * (1 - strength)));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

const PALETTE = BY_STATE.map((colour) => word(colour));
const DIMMED = BY_STATE.map((colour) => word(colour, DIM));
const CHANGED = word(COLOURS.changed);
const NOTHING = word(GROUND);
