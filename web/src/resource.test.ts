import { afterEach, beforeEach, expect, test, vi } from "vitest";

Object.assign(globalThis, { document: { getElementById: () => null } });
vi.mock("./wire", () => ({ decode: (message: ArrayBuffer) => new TextDecoder().decode(message) }));
const { Resource } = await import("./resource.svelte");

/** Requests that are on their way, and how to answer them. */
let waiting: ((text: string) => void)[] = [];

beforeEach(() => {
  waiting = [];
  vi.useFakeTimers();
  vi.stubGlobal("fetch", () => new Promise((resolve) => waiting.push((text) => resolve(new Response(text)))));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** Answer the newest request, and let time pass. */
async function answer(text: string): Promise<void> {
  waiting.at(-1)?.(text);
  await vi.advanceTimersByTimeAsync(1);
}

test("what is shown stays in sight while more of the same is on its way", async () => {
  const resource = new Resource<string>();
  resource.load("tensors?node=a", "tensors");
  await answer("a");
  await vi.advanceTimersByTimeAsync(200);
  resource.load("tensors?node=b", "tensors"); // shortly before the first request is a quarter of a second old
  await vi.advanceTimersByTimeAsync(2000);
  expect(resource.value).toBe("a");
  await answer("b");
  expect(resource.value).toBe("b");
});

test("what is shown of another thing leaves when its successor is late", async () => {
  const resource = new Resource<string>();
  resource.load("one", "one");
  await answer("one");
  resource.load("two", "two");
  await vi.advanceTimersByTimeAsync(100);
  expect(resource.value).toBe("one");
  await vi.advanceTimersByTimeAsync(200);
  expect(resource.value).toBeNull();
  await answer("two");
  expect(resource.value).toBe("two");
});
