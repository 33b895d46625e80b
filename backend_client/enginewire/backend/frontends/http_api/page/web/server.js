// What the page asks its server for. Knows nothing about what is shown.

const RETRY_MS = 2000;

export function post(path, body, signal) {
  return fetch(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  });
}

export async function about() {
  const response = await fetch("enginewire/about").catch(() => null);
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

// Calls `show` with the state of everything, again and again while somebody can see the page, and `lose`
// when there is no connection.
export function watch(show, lose) {
  let source = null, retry = 0;

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    source = new EventSource("enginewire/events");
    source.addEventListener("message", (event) => show(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      lose();
      if (source && source.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY_MS);
    });
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
