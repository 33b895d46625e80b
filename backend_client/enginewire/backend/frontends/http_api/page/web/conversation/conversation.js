// What was asked and answered, in turns, and the one answer that is on its way.

import { Answer } from "./answer.js";
import { byId, follow, make } from "../dom.js";
import { counted } from "../figures.js";
import { eventsOf, post } from "../server.js";

export class Conversation {
  // `onBusy(isBusy)` is called when an answer begins and when it has ended.
  constructor(onBusy) {
    this.onBusy = onBusy;
    this.pane = byId("turns");
    this.empty = byId("nothing-said");
    this.nothing = byId("tokens").firstElementChild;
    this.turns = [];
    this.running = null;
  }

  // Sends a prompt; `fields` are those of the request beside it. The answer, once it has ended.
  async ask(prompt, isChat, fields) {
    if (this.running) return null;
    const asked = make("article", "turn asked", prompt);
    asked.setAttribute("aria-label", "Prompt");
    const turn = { prompt, isChat, asked, answer: null };
    if (this.turns.length) this.turns.at(-1).answer.regenerate.hidden = true;
    this.turns.push(turn);
    this.empty.hidden = true;
    this.pane.append(asked);
    return this.answer(turn, fields);
  }

  // Answers the last prompt once more.
  regenerate(fields) {
    const turn = this.turns.at(-1);
    if (this.running || !turn) return null;
    turn.answer.root.remove();
    return this.answer(turn, fields);
  }

  stop() { if (this.running) this.running.abort(); }

  clear() {
    this.stop();
    for (const turn of this.turns) { turn.asked.remove(); turn.answer.root.remove(); }
    this.turns = [];
    this.empty.hidden = false;
    byId("tokens").replaceChildren(this.nothing);
  }

  async answer(turn, fields) {
    const answer = turn.answer = new Answer({
      isMarkdown: turn.isChat,
      pane: this.pane,
      onSelect: (selected) => this.show(selected),
      onRegenerate: () => this.onRegenerate(),
    });
    this.running = new AbortController();
    this.pane.append(answer.root);
    this.pane.scrollTop = this.pane.scrollHeight;
    this.pane.setAttribute("aria-busy", "true");
    this.onBusy(true);
    const failure = await this.receive(answer, { ...fields, ...this.body(turn) }, this.running.signal);
    this.running = null;
    follow(this.pane, () => answer.end(failure));
    byId("held").textContent = "";
    this.pane.setAttribute("aria-busy", "false");
    this.onBusy(false);
    return answer;
  }

  // What is said of the failure, or "".
  async receive(answer, body, signal) {
    let failure = "";
    try {
      const response = await post("enginewire/generate", body, signal);
      if (!response.ok) return said((await response.json()).error);
      for await (const data of eventsOf(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) failure = said(chunk.error);
        else this.take(answer, chunk);
      }
    } catch (error) {
      if (error.name !== "AbortError") failure = "the connection was lost";
    }
    return failure;
  }

  take(answer, chunk) {
    follow(byId("tokens"), () => follow(this.pane, () => answer.add(chunk)));
    byId("held").textContent = answer.withheld ? counted(answer.withheld, "character") + " withheld" : "";
  }

  // A prompt with the turns before it, those without an answer left out; or a prompt alone.
  body(turn) {
    if (!turn.isChat) return { prompt: turn.prompt };
    const before = this.turns.filter((each) => each !== turn && each.isChat && each.answer.text);
    const messages = before.flatMap((each) => [
      { role: "user", content: each.prompt }, { role: "assistant", content: each.answer.text },
    ]);
    return { messages: [...messages, { role: "user", content: turn.prompt }] };
  }

  show(answer) {
    const pane = byId("tokens"), list = answer.selected.tokens.root;
    if (pane.firstElementChild !== list) pane.replaceChildren(list);
  }
}

function said(error) {
  const isNamed = !error.param || error.message.includes(error.param);
  return isNamed ? error.message : error.param + ": " + error.message;
}
