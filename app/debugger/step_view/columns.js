// Many steps on few pixels: minimum and maximum of each column, so that no peak is lost.

export const MAX_COLUMNS = 1000;

/** values of steps first .. last - 1 -> {low, high} with one entry per column. */
export function minMax(values, first, last, columns) {
  const low = new Float64Array(columns), high = new Float64Array(columns);
  for (let column = 0; column < columns; column++) {
    const [from, to] = columnSteps(column, first, last, columns);
    let least = Infinity, most = -Infinity;
    for (let step = from; step < to; step++) {
      const value = values[step];
      if (value < least) least = value;
      if (value > most) most = value;
    }
    low[column] = least;
    high[column] = most;
  }
  return { low, high };
}

/** All events of a column's steps in one byte per column. */
export function anyEvents(events, first, last, columns) {
  const found = new Uint8Array(columns);
  for (let column = 0; column < columns; column++) {
    const [from, to] = columnSteps(column, first, last, columns);
    for (let step = from; step < to; step++) found[column] |= events[step];
  }
  return found;
}

/** [from, to) of a column; never empty. */
export function columnSteps(column, first, last, columns) {
  const count = last - first;
  const from = first + Math.floor((column * count) / columns);
  const to = first + Math.floor(((column + 1) * count) / columns);
  return [Math.min(from, last - 1), Math.max(to, Math.min(from, last - 1) + 1)];
}

export function stepAtFraction(fraction, first, last) {
  const step = first + Math.floor(fraction * (last - first));
  return Math.max(first, Math.min(last - 1, step));
}
