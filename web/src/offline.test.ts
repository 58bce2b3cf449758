import { expect, test } from "vitest";

test("requests that differ only in the size of the screen have the same key", async () => {
  Object.assign(globalThis, { document: { getElementById: () => null } });
  const { isCut, keyOf } = await import("./offline");
  expect(keyOf("api/run/a%2Fb/scalar?width=640&stat=rms&series=3&first=1")).toBe(
    "api/run/a/b/scalar\nseries=3\nstat=rms",
  );
  expect(keyOf("api/runs")).toBe("api/runs");
  expect(["a?width=640&stat=rms", "a?width=640&every=5", "a?smooth=0.9", "a"].map(isCut)).toEqual([
    false,
    true,
    true,
    false,
  ]);
});
