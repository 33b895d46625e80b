// The table of requests: those that live, oldest first, and below them those that ended last.

import { byId, make, makeButton, say } from "./dom.js";
import { duration, number } from "./figures.js";
import { post } from "./server.js";

const COLUMNS = [
  ["id", "Request"], ["face", "Face"], ["phase", "Phase"], ["figure", "Prompt"], ["tokens", "Tokens"],
  ["figure", "First token"], ["figure", "Time"], ["action", ""],
];

class Row {
  constructor() {
    this.root = make("tr");
    this.root.setAttribute("role", "row");
    this.cells = COLUMNS.map(([className, label]) => {
      const cell = make("td", className);
      cell.setAttribute("role", "cell");
      if (label) cell.dataset.label = label;
      return cell;
    });
    [this.id, this.face, this.phaseCell, this.prompt] = this.cells;
    [this.tokens, this.ttft, this.time, this.action] = this.cells.slice(4);
    this.phase = make("span", "phase-name");
    this.phaseCell.append(this.phase);
    this.number = make("span");
    this.bar = make("span", "bar");
    this.tokens.append(this.number, this.bar);
    this.root.append(...this.cells);
  }

  show(request, phase) {
    say(this.id, request.id);
    this.id.title = request.id;
    say(this.face, request.face || "–");
    say(this.phase, phase);
    this.phase.dataset.phase = phase;
    this.phase.title = request.engine + (request.attempts > 1 ? ", attempt " + request.attempts : "");
    say(this.prompt, number(request.prompt_tokens));
    say(this.ttft, duration(request.ttft));
  }
}

class LiveRow extends Row {
  constructor(id) {
    super();
    this.action.append(this.button = makeButton("quiet bad", "Abort", () => this.abort(id)));
    this.button.setAttribute("aria-label", "Abort " + id);
  }

  async abort(id) {
    this.button.disabled = true;
    const response = await post("enginewire/abort", { request_id: id }).catch(() => null);
    // 404: it has ended by itself, and its row is about to go.
    if (!response || (!response.ok && response.status !== 404)) this.button.disabled = false;
  }

  show(request) {
    super.show(request, request.phase);
    const most = request.max_tokens === null ? null : request.max_tokens * request.choices;
    say(this.number, number(request.tokens) + (most === null ? "" : " / " + number(most)));
    this.bar.hidden = most === null;
    this.bar.style.setProperty("--part", most ? Math.min(1, request.tokens / most).toFixed(3) : 0);
    say(this.time, duration(request.age));
  }
}

class EndedRow extends Row {
  constructor() {
    super();
    this.bar.hidden = true;
    this.action.dataset.label = "Ended";
  }

  show(request) {
    super.show(request, request.outcome);
    say(this.number, number(request.tokens));
    say(this.time, duration(request.seconds));
    // Seconds are enough, and a figure that changes less is easier to read.
    const { ago } = request;
    say(this.action, ago < 60 ? Math.floor(ago) + " s ago" : Math.floor(ago / 60) + " min ago");
  }
}

const live = new Map();
const ended = [];

function showLive(requests) {
  const ids = new Set(requests.map((request) => request.id));
  for (const [id, row] of live) if (!ids.has(id)) { row.root.remove(); live.delete(id); }
  for (const request of requests) {
    if (!live.has(request.id)) {
      live.set(request.id, new LiveRow(request.id));
      byId("rows").append(live.get(request.id).root);
    }
    live.get(request.id).show(request);
  }
}

function showEnded(requests) {
  while (ended.length > requests.length) ended.pop().root.remove();
  while (ended.length < requests.length) {
    ended.push(new EndedRow());
    byId("ended").append(ended.at(-1).root);
  }
  requests.forEach((request, i) => ended[i].show(request));
}

export function showRequests(state) {
  const { requests, num_requests: total } = state;
  showLive(requests);
  showEnded(state.ended);
  byId("requests").hidden = !requests.length && !state.ended.length;
  byId("empty").hidden = requests.length > 0;
  const before = total > requests.length ? "the oldest " + requests.length + " of " : "";
  say(byId("more"), total ? before + number(total) + " at work" : "");
}
