/** One thing the page shows, asked for again whenever it may have changed. */

import { untrack } from "svelte";
import { HOLDS, inFile, isFile } from "./offline";
import { decode } from "./wire";
import type { Problem } from "./wire.gen";

const STALE_AFTER_MS = 250;
/** A live run changes several times a second: leave the server at least twice the time that an answer took. */
const REST = 2;
/** When nobody answered, ask again after this time: the live channel may not have noticed. */
const RETRY_MS = 3000;

export class Resource<T> {
  /** The last answer; kept on screen while the next one is on its way. */
  value = $state.raw<T | null>(null);
  /** Why there is no answer, in the server's words. */
  problem = $state<string | null>(null);
  busy = $state(false);

  #path: string | null = null;
  #identity = "";
  /** Whether the value is still that of another identity. */
  #stale = false;
  #abort: AbortController | null = null;
  #again = false;
  #restUntil = 0;

  /** News of the same thing are asked for at most once per `gapMs`. */
  constructor(readonly gapMs = 0) {}

  /** Ask for `path`, or forget everything when it is null. Another `identity` means another thing altogether. */
  load(path: string | null, identity: string): void {
    untrack(() => {
      if (identity !== this.#identity) this.#replaced(identity);
      if (path !== null && path === this.#path && this.busy) {
        // Never abort for news of the same thing: a training faster than the answers would starve the picture.
        this.#again = true;
        return;
      }
      const rest = path === this.#path ? this.#restUntil - performance.now() : 0;
      if (path !== null && rest > 0) {
        if (!this.#again)
          setTimeout(() => this.#again && this.#path === path && void this.#fetch(path), rest);
        this.#again = true;
        return;
      }
      this.#abort?.abort();
      this.#path = path;
      if (path === null) {
        this.value = null;
        this.problem = null;
        this.busy = false;
      } else void this.#fetch(path);
    });
  }

  /** Ask for nothing more, and forget what is known of anything else than `identity`. */
  pause(identity: string): void {
    if (identity !== this.#identity) this.load(null, identity);
  }

  #replaced(identity: string): void {
    this.#identity = identity;
    this.#stale = true;
    this.problem = null;
    setTimeout(() => {
      if (this.#identity === identity && this.#stale && this.busy) this.value = null;
    }, STALE_AFTER_MS);
  }

  async #fetch(path: string): Promise<void> {
    const abort = new AbortController();
    this.#abort = abort;
    this.#again = false;
    this.busy = true;
    const asked = performance.now();
    try {
      const value = await ask<T>(path, abort.signal);
      if (abort.signal.aborted) return;
      this.value = value;
      this.#stale = false;
      this.problem = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.problem = error instanceof Error ? error.message : String(error);
      // What belongs to another thing must not stand under the name of this one.
      if (error instanceof Refused || this.#stale) this.value = null;
      if (!(error instanceof Refused))
        setTimeout(() => this.#path === path && !this.busy && void this.#fetch(path), RETRY_MS);
    }
    this.busy = false;
    const took = performance.now() - asked;
    this.#restUntil = performance.now() + Math.max(REST * took, this.gapMs - took);
    if (this.#again) {
      this.#again = false;
      this.load(path, this.#identity);
    }
  }
}

/** An answer of the server that says why it gives no view. */
export class Refused extends Error {}

export async function ask<T>(path: string, signal: AbortSignal): Promise<T> {
  if (isFile) {
    const message = await inFile(path).catch((error: Error) => {
      throw new Refused(error.message);
    });
    if (message !== null) return decode<T>(message);
    throw new Refused(
      `This is not in the file, which holds ${HOLDS}. Open the run itself with \`layerscope ui\`, or write the file again with a larger \`--size\`.`,
    );
  }
  let response: Response;
  try {
    response = await fetch(path, { signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error(
      "The server does not answer. Start it again with `layerscope ui`; this page will reconnect.",
    );
  }
  if (!response.ok) throw new Refused(await problemOf(response));
  return decode<T>(await response.arrayBuffer());
}

async function problemOf(response: Response): Promise<string> {
  try {
    return ((await response.json()) as Problem).problem;
  } catch {
    return `The server answered ${response.status} ${response.statusText}.`;
  }
}
