// Decode messages from Python (`envelope.py` defines the layout).

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, i8: BigInt64Array, f8: Float64Array };
const ALIGN = 8;

/** -> {head, parts: Map of key -> compressed bytes} */
export function openEnvelope(bytes) {
  const { head, position } = readHead(bytes);
  const parts = new Map();
  let start = position;
  for (const { key, length } of head.parts) {
    parts.set(key, bytes.subarray(start, start + length));
    start += length;
  }
  return { head, parts };
}

/** -> {meta, arrays: {name: typed array}} */
export async function unpackPart(part) {
  const stream = new Blob([part]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const { head, position } = readHead(bytes);
  const arrays = {};
  let start = position;
  for (const [name, type, count] of head.arrays) {
    start += (ALIGN - (start % ALIGN)) % ALIGN;
    arrays[name] = new TYPES[type](bytes.buffer, start, count);
    start += arrays[name].byteLength;
  }
  return { meta: head, arrays };
}

function readHead(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const text = new TextDecoder().decode(bytes.subarray(4, 4 + length));
  return { head: JSON.parse(text), position: 4 + length };
}
