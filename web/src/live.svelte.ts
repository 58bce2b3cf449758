/** The live channel: receives which runs changed, and reconnects after a server restart. */

import { isFile } from "./offline";
import type { Change } from "./wire.gen";

const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 4000;
/** Delay after the first connection: answers from before it may be outdated, but the first picture comes first. */
const FIRST_NEWS_MS = 1000;

export class Live {
  connected = $state(false);
  #wait = FIRST_WAIT_MS;
  #closed = false;
  #connections = 0;
  #socket: WebSocket | null = null;

  /** `changed` is called for every change; `connectedAgain` whenever changes may have been missed. */
  constructor(
    readonly changed: (change: Change) => void,
    readonly connectedAgain: () => void,
  ) {
    if (!isFile) this.#open();
  }

  close(): void {
    this.#closed = true;
    this.#socket?.close();
  }

  #open(): void {
    const socket = new WebSocket(new URL("api/live", location.href.replace(/^http/, "ws")));
    this.#socket = socket;
    socket.onopen = () => {
      this.connected = true;
      this.#wait = FIRST_WAIT_MS;
      this.#connections += 1;
      setTimeout(this.connectedAgain, this.#connections === 1 ? FIRST_NEWS_MS : 0);
    };
    socket.onmessage = (message) => this.changed(JSON.parse(message.data as string) as Change);
    socket.onclose = () => {
      this.connected = false;
      if (this.#closed) return;
      setTimeout(() => this.#open(), this.#wait);
      this.#wait = Math.min(this.#wait * 1.6, LONGEST_WAIT_MS);
    };
  }
}
