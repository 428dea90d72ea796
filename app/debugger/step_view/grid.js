// Layout of the block map: ids run left to right, then down.

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
