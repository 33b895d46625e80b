// What the page asks its server for. Knows nothing about what is shown.

const RETRY_MS = 2000;
const KEY = "enginewire-api-key";

// The key goes with the tab: it is in no cookie, and other pages do not see it.
export function keepKey(key) { sessionStorage.setItem(KEY, key); }

function credentials() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: "Bearer " + key } : {};
}

export function post(path, body, signal) {
  const headers = { "content-type": "application/json", ...credentials() };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export async function about() {
  const response = await fetch("enginewire/about", { headers: credentials() }).catch(() => null);
  return response && response.ok ? response.json() : null;
}

// The data of each server-sent event of an answer to `post`.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

// Calls `show` with the state of everything, again and again while somebody can see the page, `lose` when
// there is no connection, and `lock` when a key is needed. Returns what tries again at once.
export function watch(show, lose, lock) {
  let watching = new AbortController(), retry = 0;

  function close() {
    clearTimeout(retry);
    watching.abort();
  }

  async function open() {
    close();
    const mine = watching = new AbortController();
    try {
      // Not an EventSource, which brings no key.
      const headers = credentials();
      const response = await fetch("enginewire/events", { headers, signal: mine.signal });
      if (response.status === 401 || response.status === 403) return lock();
      if (response.ok) for await (const data of eventsOf(response)) show(JSON.parse(data));
    } catch {
      // No connection, or no more.
    }
    if (mine.signal.aborted) return;
    lose();
    retry = setTimeout(open, RETRY_MS);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
  return open;
}
