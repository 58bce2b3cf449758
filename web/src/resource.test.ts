import { afterEach, beforeEach, expect, test, vi } from "vitest";

Object.assign(globalThis, { document: { getElementById: () => null } });
vi.mock("./wire", () => ({ decode: (message: ArrayBuffer) => new TextDecoder().decode(message) }));
const { Resource } = await import("./resource.svelte");

/** Requests that are on their way, and how to answer them. */
let waiting: ((text: string | null) => void)[] = [];

beforeEach(() => {
  waiting = [];
  vi.useFakeTimers();
  const asked = (resolve: (answer: Response) => void, reject: (problem: Error) => void) =>
    waiting.push((text) =>
      text === null ? reject(new TypeError("no server")) : resolve(new Response(text)),
    );
  vi.stubGlobal("fetch", () => new Promise(asked));
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** Answer the newest request, or let it fail, and let time pass. */
async function answer(text: string | null): Promise<void> {
  waiting.at(-1)?.(text);
  await vi.advanceTimersByTimeAsync(1);
}

test("the old value stays on screen while a newer one is loading", async () => {
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

test("a value does not stay under the name of another one when the server does not respond, and the request is repeated", async () => {
  const resource = new Resource<string>();
  resource.load("one", "one");
  await answer("one");
  resource.load("two", "two");
  await answer(null);
  expect(resource.value).toBeNull();
  expect(resource.problem).toContain("does not respond");
  await vi.advanceTimersByTimeAsync(4000);
  await answer("two");
  expect(resource.value).toBe("two");
  expect(resource.problem).toBeNull();
});

test("what is shown stays when news of it cannot be had", async () => {
  const resource = new Resource<string>();
  resource.load("one", "one");
  await answer("one");
  resource.load("one?step=2", "one");
  await answer(null);
  expect(resource.value).toBe("one");
  expect(resource.problem).not.toBeNull();
});
