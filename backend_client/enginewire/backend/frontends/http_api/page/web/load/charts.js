// What the engines bear and how quickly answers come, over time.

import { Chart } from "./chart.js";
import { byId } from "../dom.js";
import { duration, number } from "../figures.js";

const part = (value) => {
  if (value > 0 && value < 0.001) return "<0.1 %";
  return (value < 0.1 ? (value * 100).toFixed(1) : Math.round(value * 100)) + " %";
};
const tenths = (value) => Math.round(value * 1000) / 10 + " %";
const short = (value) => (value ? duration(value).replace(".0", "") : "0");
const count = (value) => (Number.isInteger(value) ? number(value) : value.toFixed(1));

export class LoadCharts {
  constructor() {
    const parent = byId("charts");
    this.kv = new Chart(parent, "KV use", { least: 0.1, most: 1, label: tenths });
    this.queue = new Chart(parent, "Queue", { names: ["waiting", "running"], least: 4, label: count });
    this.ttft = new Chart(parent, "Time to first token", { least: 0.01, label: short, isSparse: true });
    this.itl = new Chart(parent, "Time between tokens", { least: 0.001, label: short });
    this.speed = new Chart(parent, "Output", { least: 10, label: count });
    this.before = null;
    this.pace = 0;
  }

  // The connection was lost or nobody looked: the next totals are compared with those after them.
  forget() { this.before = null; }

  show(state) {
    // The server's clock: what comes late does not tell of a later time.
    const now = state.at;
    const sum = (name) => state.engines.reduce((total, engine) => total + engine[name], 0);
    const use = sum("kv_blocks_used") / (sum("kv_blocks_total") || 1);
    const waiting = sum("waiting"), running = sum("running");
    this.kv.add(now, [use], [part(use)]);
    this.queue.add(now, [waiting, running], [number(waiting) + " waiting", number(running) + " running"]);
    this.showLatencies(now, state.totals);
  }

  showLatencies(now, totals) {
    const before = this.before;
    this.before = { at: now, totals };
    const isKnown = before && now > before.at && now - before.at < 2;
    for (const name of ["ttft", "itl"]) {
      const news = isKnown ? totals[name].count - before.totals[name].count : 0;
      const mean = news > 0 ? (totals[name].sum - before.totals[name].sum) / news : 0;
      this[name].add(now, news > 0 ? [mean] : null, [duration(mean)]);
    }
    if (!isKnown) return this.speed.add(now, null);
    const rate = (totals.generated_tokens - before.totals.generated_tokens) / (now - before.at);
    this.pace = rate === 0 && this.pace < 1 ? 0 : this.pace * 0.6 + rate * 0.4;
    this.speed.add(now, [this.pace], [number(Math.round(this.pace)) + " tokens/s"]);
  }
}
