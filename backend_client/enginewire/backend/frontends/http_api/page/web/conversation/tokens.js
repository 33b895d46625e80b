// The engine's tokens as chips, and what is known of the one that is pointed at, tapped or reached by key.

import { byId, make } from "../dom.js";
import { percent } from "../figures.js";

const facts = new WeakMap();
const isPart = (token) => token.text.includes("\uFFFD");

function visible(token) {
  // A part of a character has no text of its own, but bytes.
  if (isPart(token)) return "‹" + token.bytes + "›";
  return token.text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

function makeChip(token) {
  const chip = make("span", "token");
  chip.setAttribute("role", "option");
  chip.tabIndex = -1;
  if (isPart(token) || token.text === "") {
    chip.append(make("i", "", visible(token)));
  } else {
    for (const piece of token.text.split(/(\n|\t)/)) {
      if (piece === "\n") chip.append(make("i", "", "↵"), "\n");
      else if (piece === "\t") chip.append(make("i", "", "⇥"), "\t");
      else if (piece) chip.append(piece);
    }
  }
  if (token.logprob !== undefined) {
    chip.style.setProperty("--surprise", (1 - Math.exp(token.logprob)).toFixed(3));
  }
  facts.set(chip, token);
  return chip;
}

// The tokens of one choice. One of them is reached by Tab, the others by arrow keys.
export class TokenList {
  constructor() {
    this.root = make("div", "token-list");
    this.count = 0;
  }

  add(tokens) {
    if (!tokens.length) return;
    const chips = tokens.map(makeChip);
    if (!this.count) {
      this.root.setAttribute("role", "listbox");
      this.root.setAttribute("aria-label", "Tokens");
      this.root.setAttribute("aria-orientation", "horizontal");
      chips[0].tabIndex = 0;
    }
    this.count += chips.length;
    this.root.append(...chips);
  }
}

function describe(token) {
  const list = make("dl");
  const row = (name, value) => list.append(make("dt", "", name), make("dd", "", value));
  row("token", visible(token));
  row("id", String(token.id));
  row("bytes", token.bytes || "none");
  if (token.logprob !== undefined) {
    row("logprob", token.logprob.toFixed(3) + " (" + percent(token.logprob) + ")");
  }
  if (!token.top || !token.top.length) return [list];
  const others = make("ol");
  for (const other of token.top) {
    const item = make("li");
    const bar = make("span", "bar");
    bar.style.setProperty("--part", Math.exp(other.logprob).toFixed(3));
    item.append(make("code", "", visible(other)), bar, make("span", "", percent(other.logprob)));
    others.append(item);
  }
  return [list, others];
}

let shown = null;

function hideFacts() {
  if (!shown) return;
  shown.classList.remove("shown");
  shown.removeAttribute("aria-describedby");
  shown = null;
  byId("tip").hidden = true;
}

function showFacts(chip) {
  if (chip !== shown) {
    hideFacts();
    shown = chip;
    chip.classList.add("shown");
    chip.setAttribute("aria-describedby", "tip");
    byId("tip").replaceChildren(...describe(facts.get(chip)));
  }
  placeFacts();
}

function placeFacts() {
  const tip = byId("tip");
  tip.hidden = false;
  const box = shown.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = left + "px";
  tip.style.top = (below ? box.bottom + 8 : Math.max(8, box.top - 8 - tip.offsetHeight)) + "px";
}

// The chip that a key leads to: the next one or the one before, or the one above or below.
function reached(chip, key) {
  if (key === "ArrowRight") return chip.nextElementSibling;
  if (key === "ArrowLeft") return chip.previousElementSibling;
  if (key === "Home") return chip.parentElement.firstElementChild;
  if (key === "End") return chip.parentElement.lastElementChild;
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const next = key === "ArrowDown" ? "nextElementSibling" : "previousElementSibling";
  const { left, top } = chip.getBoundingClientRect();
  let best = null, line = null;
  for (let each = chip[next]; each; each = each[next]) {
    const box = each.getBoundingClientRect();
    if (Math.abs(box.top - top) < 4) continue;
    if (line !== null && Math.abs(box.top - line) >= 4) break;
    line = box.top;
    if (!best || Math.abs(box.left - left) < Math.abs(best.getBoundingClientRect().left - left)) best = each;
  }
  return best;
}

// Tab comes back to where it left.
function remember(chip) {
  chip.parentElement.querySelector('[tabindex="0"]').tabIndex = -1;
  chip.tabIndex = 0;
}

export function tellFactsIn(pane) {
  const chipOf = (event) => event.target.closest(".token");
  const isAt = (chip) => document.activeElement === chip;

  pane.addEventListener("pointerover", (event) => {
    const chip = chipOf(event);
    if (event.pointerType === "mouse" && chip) showFacts(chip);
  });
  pane.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && shown && !isAt(shown)) hideFacts();
  });
  // A click or a tap moves the focus by itself.
  pane.addEventListener("focusin", (event) => {
    const chip = chipOf(event);
    if (!chip) return;
    remember(chip);
    showFacts(chip);
  });
  pane.addEventListener("focusout", hideFacts);
  pane.addEventListener("keydown", (event) => {
    const chip = chipOf(event);
    const next = chip && reached(chip, event.key);
    if (next) next.focus();
    if (next || (chip && ["ArrowUp", "ArrowDown"].includes(event.key))) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideFacts(); });
  // What was brought into view by a key, or is still pointed at, keeps its facts.
  addEventListener("scroll", () => {
    if (shown) isAt(shown) || shown.matches(":hover") ? placeFacts() : hideFacts();
  }, true);
}
