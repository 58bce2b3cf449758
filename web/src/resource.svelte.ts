/** An answer of the server, requested again whenever it may have changed. */

import { untrack } from "svelte";
import { HOLDS, inFile, isFile } from "./offline";
import { decode } from "./wire";
import type { Problem } from "./wire.gen";

const STALE_AFTER_MS = 250;
/** A live run changes several times a second: leave the server at least twice the time that an answer took. */
const REST = 2;
/** Time until the page repeats a request without answer: the live channel may not have noticed. */
const RETRY_MS = 3000;

export class Resource<T> {
  /** The last answer; kept on screen while the next one is on its way. */
  value = $state.raw<T | null>(null);
  /** The server's reason why there is no answer. */
  problem = $state<string | null>(null);
  busy = $state(false);

  #path: string | null = null;
  #identity = "";
  /** Whether the value is still that of another identity. */
  #stale = false;
  #abort: AbortController | null = null;
  #again = false;
  #restUntil = 0;

  /** The same answer is requested at most once per `gapMs`. */
  constructor(readonly gapMs = 0) {}

  /** Request `path`, or forget the answer when it is null. Another `identity` means an answer about something else. */
  load(path: string | null, identity: string): void {
    untrack(() => {
      if (identity !== this.#identity) this.#replaced(identity);
      if (path !== null && path === this.#path && this.busy) {
        // Never abort to repeat a request: a training faster than the answers would leave the screen empty.
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

  /** Request nothing more, and forget an answer that does not belong to `identity`. */
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
      // An answer about something else must not stay on screen.
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

/** The server refused the request and said why. */
export class Refused extends Error {}

export async function ask<T>(path: string, signal: AbortSignal): Promise<T> {
  if (isFile) {
    const message = await inFile(path).catch((error: Error) => {
      throw new Refused(error.message);
    });
    if (message !== null) return decode<T>(message);
    throw new Refused(
      `Not in this file, which holds ${HOLDS}. Open the run with \`layerscope ui\`, or write the file again with a larger \`--size\`.`,
    );
  }
  let response: Response;
  try {
    response = await fetch(path, { signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error(
      "The server does not respond. Start it again with `layerscope ui`; this page reconnects by itself.",
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
