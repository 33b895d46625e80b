// One answer of the model: its choices, each as text and as tokens, and how quickly they came.

import { follow, make, makeButton, say } from "../dom.js";
import { counted, duration } from "../figures.js";
import { blocksOf, elementOf } from "./markdown.js";
import { TokenList } from "./tokens.js";

const IS_BLOCK = /^(P|H\d|UL|OL|LI|PRE|DIV)$/;

// One of the answers to the same prompt. What may still become a stop string is shown apart, and gone when
// it did.
class Choice {
  constructor(index, isMarkdown, pane) {
    this.index = index;
    this.isMarkdown = isMarkdown;
    this.pane = pane;
    this.text = "";
    this.finish = null;
    this.tokens = new TokenList();
    this.root = make("div", isMarkdown ? "text" : "text plain");
    this.held = make("span", "withheld going");
    this.root.append(this.held);
    this.blocks = [];
    this.isDue = false;
  }

  add(piece) {
    this.text += piece.text;
    say(this.held, piece.withheld || "");
    this.tokens.add(piece.tokens || []);
    if (piece.finish_reason) this.finish = [piece.finish_reason, piece.stop_reason];
    // Many pieces come between two pictures of the screen.
    if (!this.isDue) requestAnimationFrame(() => this.isDue && this.render());
    this.isDue = true;
  }

  render() {
    this.isDue = false;
    follow(this.pane, () => {
      this.held.remove();
      if (this.isMarkdown) this.renderBlocks();
      else this.renderPlain();
      this.end().append(this.held);
    });
  }

  renderPlain() {
    const shown = this.root.firstChild;
    if (shown) shown.appendData(this.text.slice(shown.length));
    else this.root.append(this.text);
  }

  // Blocks that have not changed stay, with what a reader has selected in them.
  renderBlocks() {
    const blocks = blocksOf(this.text);
    const written = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < written.length && written[same] === this.blocks[same]) same += 1;
    while (this.root.children.length > same) this.root.lastChild.remove();
    this.root.append(...blocks.slice(same).map(elementOf));
    this.blocks = written;
  }

  end() {
    let end = this.root;
    while (end.lastElementChild && IS_BLOCK.test(end.lastElementChild.tagName)) end = end.lastElementChild;
    return end.tagName === "PRE" ? end.firstElementChild : end;
  }

  stop() {
    this.held.textContent = "";
    this.held.classList.remove("going");
    this.render();
  }
}

export class Answer {
  // `pane` is what scrolls; `onSelect` is called when another choice is looked at.
  constructor({ isMarkdown, pane, onSelect, onRegenerate }) {
    this.isMarkdown = isMarkdown;
    this.pane = pane;
    this.onSelect = onSelect;
    this.began = performance.now();
    this.first = null;
    this.count = 0;
    this.choices = [];
    this.selected = null;
    this.root = make("article", "turn answer");
    this.root.setAttribute("aria-label", "Answer");
    this.tabs = make("div", "choices");
    this.tabs.hidden = true;
    this.tabs.setAttribute("role", "group");
    this.tabs.setAttribute("aria-label", "Choices");
    this.place = make("div");
    this.outcome = make("p", "outcome");
    this.copy = makeButton("quiet", "Copy", () => this.copyText());
    this.regenerate = makeButton("quiet", "Regenerate", onRegenerate);
    this.look = makeButton("quiet", "Tokens", () => this.onSelect(this));
    this.actions = make("div", "actions");
    this.actions.append(this.copy, this.look, this.regenerate);
    this.actions.hidden = true;
    this.root.append(this.tabs, this.place, this.outcome, this.actions);
    this.select(this.choice(0));
    this.tell("waiting for the first token");
  }

  // The text of the choice that is looked at.
  get text() { return this.selected.text; }

  get withheld() { return this.choices.reduce((sum, choice) => sum + choice.held.textContent.length, 0); }

  choice(index) {
    let choice = this.choices.find((each) => each.index === index);
    if (choice) return choice;
    choice = new Choice(index, this.isMarkdown, this.pane);
    choice.tab = makeButton("choice", "Choice " + (index + 1), () => this.select(choice));
    this.choices.push(choice);
    this.choices.sort((one, other) => one.index - other.index);
    this.tabs.replaceChildren(...this.choices.map((each) => each.tab));
    this.tabs.hidden = this.choices.length < 2;
    choice.tab.setAttribute("aria-pressed", "false");
    return choice;
  }

  select(choice) {
    this.selected = choice;
    for (const each of this.choices) each.tab.setAttribute("aria-pressed", String(each === choice));
    this.place.replaceChildren(choice.root);
    this.onSelect(this);
  }

  add(chunk) {
    this.outcome.title = chunk.id;
    for (const piece of chunk.choices) {
      const count = (piece.tokens || []).length;
      if (this.first === null && count) this.first = performance.now();
      this.count += count;
      this.choice(piece.index).add(piece);
    }
    this.tell("");
  }

  end(failure) {
    for (const choice of this.choices) choice.stop();
    this.actions.hidden = false;
    this.copy.hidden = !this.choices.some((choice) => choice.text);
    const ends = this.choices.filter((choice) => choice.finish).map(({ finish: [reason, stop] }) =>
      reason + (stop === null ? "" : " at " + JSON.stringify(stop)));
    if (failure) this.tell(failure);
    else if (ends.length === this.choices.length) this.tell("ended: " + [...new Set(ends)].join(", "));
    else this.tell("stopped");
    this.outcome.classList.toggle("failed", Boolean(failure));
  }

  tell(what) {
    const parts = what ? [what] : [];
    if (this.count) parts.push(counted(this.count, "token"));
    if (this.first !== null) {
      parts.push("first after " + duration((this.first - this.began) / 1000));
      const seconds = (performance.now() - this.first) / 1000;
      if (this.count > 1 && seconds > 0) parts.push(Math.round((this.count - 1) / seconds) + " tokens/s");
    }
    say(this.outcome, parts.join(" · "));
  }

  async copyText() {
    const isCopied = await navigator.clipboard.writeText(this.text).then(() => true, () => false);
    say(this.copy, isCopied ? "Copied" : "Not allowed");
    setTimeout(() => say(this.copy, "Copy"), 1500);
  }
}
