import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../src/layerscope/server/static",
    emptyOutDir: true,
    target: "es2022",
    // A data: address in a style would need a hole in the content policy.
    assetsInlineLimit: 0,
  },
  test: { include: ["src/**/*.test.ts"] },
});
