// Calls to this server, with the key that it may ask for. The key stays in this tab's session storage.

const STORED = "headway.key";

/** The server wants a key, or another one. */
export class KeyWanted extends Error {}

/** The server answered with an error. */
export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function storedKey() {
  return sessionStorage.getItem(STORED) ?? "";
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(STORED, key);
  else sessionStorage.removeItem(STORED);
}

/** Fetch something; answers that are errors are thrown. `name` is what the call is to be called by the server. */
export async function call(path, { body, signal, name, method = body ? "POST" : "GET" } = {}) {
  const headers = {};
  if (name) headers["X-Request-Id"] = name;
  if (storedKey()) headers.Authorization = `Bearer ${storedKey()}`;
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body ? JSON.stringify(body) : undefined,
    cache: "no-store",
    credentials: "omit",
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: null }));
  const message = error?.message ?? `the server answered ${response.status}`;
  if (response.status === 401) throw new KeyWanted(message);
  throw new Refused(response.status, message, error?.code);
}

/** The events of a stream of server-sent events, parsed, until "[DONE]". */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
