/**
 * The page as one file, which holds the answers to its requests. In a notebook the widget answers the other requests.
 * The layout is described in `layerscope/server/one_file.py`.
 */

const element = document.getElementById("layerscope-answers");

/** Whether the page is a file that holds its answers. */
export const isFile = element !== null;

/** Whether only the answers in the file exist, without a server or a widget. */
export const isClosed = isFile && element?.dataset.hosted === undefined;

/** The selection to begin with. */
export const START_AT = element?.dataset.start ?? "";

/** What the file holds, in words. */
export const HOLDS = element?.dataset.holds ?? "";

/** Parameters that cut or smooth an answer: a file has only whole answers, a widget can cut them. */
const CUT = ["every", "first", "last", "smooth"] as const;
/** Parameters that a file ignores. */
const SCREEN = new Set<string>(["width", "height", "coarse", ...CUT]);
const TIMEOUT_MS = 30_000;

interface FileIndex {
  readonly paths: readonly string[];
  readonly sizes: readonly number[];
}

let answers: Promise<Map<string, ArrayBuffer>> | null = null;

/** The message for a path; null if it is not in the file. */
export async function inFile(path: string): Promise<ArrayBuffer | null> {
  const cut = !isClosed && isCut(path) ? await fromHost(path) : null;
  if (cut !== null) return cut;
  answers ??= unpacked();
  const key = keyOf(path);
  const known = await answers;
  // A file holds the last step of each answer that has one; the answer names it.
  const message = known.get(key) ?? (isClosed ? known.get(key.replace(/\nstep=[^\n]*/, "")) : undefined);
  if (message !== undefined) return message;
  return isClosed ? null : fromHost(path);
}

/** Whether a request asks for a cut or smoothed answer. */
export function isCut(path: string): boolean {
  const query = new URLSearchParams(path.split("?")[1] ?? "");
  return CUT.some((name) => query.has(name));
}

/** The request without the parameters that a file ignores. */
export function keyOf(path: string): string {
  const [place = "", query = ""] = path.split("?");
  const pairs = [...new URLSearchParams(query)].filter(([name]) => !SCREEN.has(name));
  const sorted = pairs.map(([name, value]) => `${name}=${value}`).sort();
  return [decodeURIComponent(place), ...sorted].join("\n");
}

async function unpacked(): Promise<Map<string, ArrayBuffer>> {
  const packed = bytesOf(element?.textContent ?? "");
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = await new Response(stream).arrayBuffer();
  const length = new DataView(whole).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, length))) as FileIndex;
  const messages = new Map<string, ArrayBuffer>();
  let at = 4 + length;
  head.paths.forEach((path, index) => {
    const size = head.sizes[index] ?? 0;
    messages.set(path, whole.slice(at, at + size));
    at += size;
  });
  return messages;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

let requests = 0;
/** A notebook may be open without Python: after one timeout the page no longer waits. */
let isWidgetGone = false;

/** Ask the widget around this page, which asks Python. */
function fromHost(path: string): Promise<ArrayBuffer | null> {
  if (isWidgetGone) return Promise.resolve(null);
  requests += 1;
  const id = requests;
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      removeEventListener("message", received);
      clearTimeout(timer);
    };
    const received = (event: MessageEvent): void => {
      if (event.source !== parent || event.data?.layerscope !== id) return;
      stop();
      if (typeof event.data.problem === "string") reject(new Error(event.data.problem));
      else resolve(event.data.message as ArrayBuffer);
    };
    const timer = setTimeout(() => {
      isWidgetGone = true;
      stop();
      resolve(null);
    }, TIMEOUT_MS);
    addEventListener("message", received);
    parent.postMessage({ layerscope: id, path }, "*");
  });
}
