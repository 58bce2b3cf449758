import { beforeAll, expect, test, vi } from "vitest";

beforeAll(() => vi.stubGlobal("Path2D", class {}));

test("a path on a canvas keeps its outline", async () => {
  const { Outline } = await import("./svg");
  const outline = new Outline();
  outline.moveTo(0, 0);
  outline.arcTo(10, 0, 10, 10, 4);
  outline.lineTo(10, 10);
  outline.closePath();
  expect(outline.d).toBe("M0 0L6 0A4 4 0 0 1 10 4L10 10Z");
  const circle = new Outline();
  circle.moveTo(5, 0);
  circle.arc(0, 0, 5, 0, 2 * Math.PI);
  expect(circle.d).toBe("M5 0L5 0A5 5 0 0 1 -5 0A5 5 0 0 1 5 0");
});

test("colors lose their transparency to a number of their own, names their markup", async () => {
  const { escaped, solid } = await import("./svg");
  expect(solid("#56b4e9")).toEqual(["#56b4e9", 1]);
  expect(solid("rgba(1, 2, 3, 0.5)")).toEqual(["rgb(1,2,3)", 0.5]);
  expect(solid("color(srgb 1 0.5 0 / 0.28)")).toEqual(["rgb(255,128,0)", 0.28]);
  expect(escaped('<a href="x">&\u0001')).toBe("&lt;a href=&quot;x&quot;&gt;&amp;");
});
