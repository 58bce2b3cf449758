import { expect, test } from "vitest";
import { decode } from "./wire";

function message(head: object, columns: readonly number[]): ArrayBuffer {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const start = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new ArrayBuffer(start + 8 * columns.length);
  new DataView(bytes).setUint32(0, text.length, true);
  new Uint8Array(bytes, 4).set(text);
  new Float64Array(bytes, start).set(columns);
  return bytes;
}

test("columns of a message stand where the record names them", () => {
  const head = { record: { name: "é", inner: [{ low: { column: 0 } }] }, columns: [["f8", 0, 3]] };
  const record = decode<{ name: string; inner: { low: Float64Array }[] }>(
    message(head, [1, Number.NaN, -0.5]),
  );
  expect(record.name).toBe("é");
  expect(Array.from(record.inner[0]?.low ?? [])).toEqual([1, Number.NaN, -0.5]);
});

test("a column of bytes is one of bytes", () => {
  const head = { record: { shades: { column: 0 } }, columns: [["u1", 0, 3]] };
  const { shades } = decode<{ shades: Uint8Array }>(message(head, [2 ** 0.5]));
  expect(shades).toBeInstanceOf(Uint8Array);
  expect(Array.from(shades)).toEqual(Array.from(new Uint8Array(new Float64Array([2 ** 0.5]).buffer, 0, 3)));
});
