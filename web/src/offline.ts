/**
 * The page as one file: answers are in it, by what is asked for. Inside a notebook whoever holds the page answers the rest.
 * The layout is described in `layerscope/server/one_file.py`.
 */

const element = document.getElementById("layerscope-answers");

/** Whether the page is a file that holds its answers. */
export const isFile = element !== null;

/** Whether nobody answers what is not in the file. */
export const isClosed = isFile && element?.dataset.hosted === undefined;

/** The selection to begin with. */
export const START_AT = element?.dataset.start ?? "";

/** What the file holds, in words. */
export const HOLDS = element?.dataset.holds ?? "";

/** What is shown of an answer: a file has only the whole, whoever is asked can cut it. */
const CUT = ["every", "first", "last", "smooth"] as const;
/** The size of the screen is that of the file. */
const SCREEN = new Set<string>(["width", "height", "coarse", ...CUT]);
const ASKING_MS = 30_000;

interface Head {
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
  // Of what has a step, a file holds the last one; the answer says which.
  const found = known.get(key) ?? (isClosed ? known.get(key.replace(/\nstep=[^\n]*/, "")) : undefined);
  if (found !== undefined) return found;
  return isClosed ? null : fromHost(path);
}

/** Whether a part of an answer is asked for, or a smoothed one. */
export function isCut(path: string): boolean {
  const query = new URLSearchParams(path.split("?")[1] ?? "");
  return CUT.some((name) => query.has(name));
}

/** What is asked for, without what only the screen decides. */
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
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, length))) as Head;
  const found = new Map<string, ArrayBuffer>();
  let at = 4 + length;
  head.paths.forEach((path, index) => {
    const size = head.sizes[index] ?? 0;
    found.set(path, whole.slice(at, at + size));
    at += size;
  });
  return found;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

let asked = 0;
/** A notebook may be looked at without Python: who did not answer once is not waited for again. */
let isDeaf = false;

/** Ask the page around this one, which asks Python. */
function fromHost(path: string): Promise<ArrayBuffer | null> {
  if (isDeaf) return Promise.resolve(null);
  asked += 1;
  const id = asked;
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      removeEventListener("message", heard);
      clearTimeout(timer);
    };
    const heard = (event: MessageEvent): void => {
      if (event.source !== parent || event.data?.layerscope !== id) return;
      stop();
      if (typeof event.data.problem === "string") reject(new Error(event.data.problem));
      else resolve(event.data.message as ArrayBuffer);
    };
    const timer = setTimeout(() => {
      isDeaf = true;
      stop();
      resolve(null);
    }, ASKING_MS);
    addEventListener("message", heard);
    parent.postMessage({ layerscope: id, path }, "*");
  });
}
