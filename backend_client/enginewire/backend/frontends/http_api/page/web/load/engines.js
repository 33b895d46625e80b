// The engines: their state, their requests, and their KV blocks as squares.

import { byId, make, say } from "../dom.js";
import { counted, number } from "../figures.js";

const MAX_CELLS = 288;

class EngineView {
  constructor() {
    this.head = make("div", "title");
    this.name = make("span", "name");
    this.state = make("span", "pill state");
    this.head.append(this.name, this.state);
    this.grid = make("div", "grid");
    this.grid.setAttribute("role", "img");
    this.figures = ["running", "waiting", "blocks"].map((name) => {
      const item = make("span", name), figure = make("b"), word = make("span");
      item.append(figure, " ", word);
      return { item, figure, word };
    });
    const counts = make("div", "counts");
    counts.append(...this.figures.map((each) => each.item));
    this.root = make("div", "engine");
    this.root.append(this.head, counts, this.grid);
  }

  show(engine, isOnly) {
    say(this.name, engine.target);
    this.head.hidden = isOnly;
    say(this.state, engine.state);
    this.state.dataset.state = engine.state;
    const blocks = "of " + counted(engine.kv_blocks_total, "block");
    const shown = [[engine.running, "running"], [engine.waiting, "waiting"], [engine.kv_blocks_used, blocks]];
    this.figures.forEach((each, i) => {
      say(each.figure, number(shown[i][0]));
      say(each.word, shown[i][1]);
    });
    this.showBlocks(engine);
  }

  showBlocks({ kv_blocks_total: total, kv_blocks_used: inUse, kv_blocks_cached: kept }) {
    const cells = Math.min(total, MAX_CELLS), perCell = cells ? total / cells : 1;
    if (this.grid.children.length !== cells) {
      this.grid.replaceChildren(...Array.from({ length: cells }, () => make("i")));
    }
    const used = Math.ceil(inUse / perCell), cached = Math.ceil(kept / perCell);
    [...this.grid.children].forEach((cell, i) => {
      const kind = i < used ? "used" : i < used + cached ? "cached" : "";
      if (cell.className !== kind) cell.className = kind;
    });
    this.grid.hidden = !cells;
    this.grid.title = "a square is " + (perCell > 1 ? counted(Math.round(perCell), "block") : "one block");
    const told = number(inUse) + " in use, " + number(kept) + " kept for reuse, of " + counted(total, "block");
    this.grid.setAttribute("aria-label", told);
  }
}

const views = [];

export function showEngines(engines) {
  while (views.length < engines.length) {
    views.push(new EngineView());
    byId("engines").append(views.at(-1).root);
  }
  engines.forEach((engine, i) => views[i].show(engine, engines.length === 1));
}
