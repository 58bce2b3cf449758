/** Bytes → records. The layout is described in `layerscope/server/wire.py`. */

type Column = Float64Array | Float32Array | Uint8Array;
type Place = readonly [format: keyof typeof ARRAYS, offset: number, length: number];

const ALIGNMENT = 8;
const ARRAYS = { f8: Float64Array, f4: Float32Array, u1: Uint8Array };

/** The record that a message holds; its columns are windows into the message, not copies. */
export function decode<T>(message: ArrayBuffer): T {
  const size = new DataView(message).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(message, 4, size))) as {
    record: unknown;
    columns: readonly Place[];
  };
  const start = Math.ceil((4 + size) / ALIGNMENT) * ALIGNMENT;
  const columns = head.columns.map(
    ([format, offset, length]): Column => new ARRAYS[format](message, start + offset, length),
  );
  return revived(head.record, columns) as T;
}

function revived(value: unknown, columns: readonly Column[]): unknown {
  if (Array.isArray(value)) return value.map((entry) => revived(entry, columns));
  if (typeof value !== "object" || value === null) return value;
  if ("column" in value) return columns[value.column as number];
  return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, revived(entry, columns)]));
}
