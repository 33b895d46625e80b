// A small chart of the last minute, with axes and figures. Knows nothing about what is drawn.

import { make, makeSvg, say } from "../dom.js";

const SECONDS = 60, HEIGHT = 84, LEFT = 46, RIGHT = 4, TOP = 6, BOTTOM = 16;
// Nobody looked for longer than this: nothing is known of that time.
const GAP_SECONDS = 2;
let charts = 0;

// The next round number, so that the axis does not move with every value.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 10].map((step) => step * power).find((round) => round >= value * 0.9999);
}

export class Chart {
  // `names` are those of the lines; `least` is the smallest end of the axis, `label` makes its figures.
  // Values that come now and then, `isSparse`, are dots on a line that has no gaps.
  constructor(parent, title, { names = [""], least, most = Infinity, label, isSparse = false }) {
    this.title = title;
    this.label = label;
    this.least = least;
    this.most = most;
    this.isSparse = isSparse;
    this.names = names;
    this.points = [];
    this.now = 0;
    this.root = make("figure", "chart");
    this.root.id = "chart-" + (charts += 1);
    const caption = make("figcaption");
    this.figures = names.map((_, i) => make("b", names.length > 1 ? "key-" + i : "", "–"));
    caption.append(make("span", "title-of-chart", title), ...this.figures);
    this.svg = makeSvg("svg", { height: HEIGHT, role: "img" });
    this.grid = makeSvg("path", { class: "grid-line" });
    this.labels = [0, 1, 2].map(() => makeSvg("text", { class: "y", "text-anchor": "end", x: LEFT - 6 }));
    this.ends = ["60 s ago", "now"].map((text, i) => {
      const element = makeSvg("text", { class: "x", y: HEIGHT - 3, "text-anchor": i ? "end" : "start" });
      element.textContent = text;
      return element;
    });
    this.lines = names.map((_, i) => makeSvg("path", { class: "line line-" + i }));
    this.dots = makeSvg("path", { class: "line dots" });
    this.svg.append(this.grid, ...this.labels, ...this.ends, ...this.lines, this.dots);
    this.root.append(caption, this.svg);
    parent.append(this.root);
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // `values` and `figures` have one for each line; null when there is nothing new to tell.
  add(now, values, figures) {
    // Another server's clock.
    if (now < this.now) this.points = [];
    if (values) {
      this.points.push({ at: now, values });
      this.figures.forEach((figure, i) => say(figure, figures[i]));
    }
    this.now = now;
    while (this.points.length && this.points[0].at < now - SECONDS) this.points.shift();
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    const highest = Math.max(this.least, ...this.points.flatMap((point) => point.values));
    const end = Math.min(this.most, roundUp(highest));
    const bottom = HEIGHT - BOTTOM, right = width - RIGHT;
    const x = (at) => LEFT + (right - LEFT) * (1 - (this.now - at) / SECONDS);
    const y = (value) => bottom - (bottom - TOP) * Math.min(1, value / end);
    const ticks = [0, end / 2, end];
    this.grid.setAttribute("d", ticks.map((tick) => "M" + LEFT + " " + y(tick) + "H" + right).join(""));
    this.labels.forEach((text, i) => {
      text.setAttribute("y", y(ticks[i]) + 3.5);
      say(text, this.label(ticks[i]));
    });
    this.ends[0].setAttribute("x", LEFT);
    this.ends[1].setAttribute("x", right);
    this.lines.forEach((line, i) => line.setAttribute("d", this.path(i, x, y)));
    if (this.isSparse) this.dots.setAttribute("d", this.points.map((point) =>
      "M" + x(point.at).toFixed(1) + " " + y(point.values[0]).toFixed(1) + "h.01").join(""));
    const most = this.names.map((name, i) => {
      const values = this.points.map((point) => point.values[i]);
      const told = values.length ? "up to " + this.label(Math.max(...values)) : "no values";
      return name ? name + " " + told : told;
    });
    this.svg.setAttribute("aria-label", this.title + " in the last minute: " + most.join(", "));
  }

  path(line, x, y) {
    let d = "", before = -Infinity;
    for (const point of this.points) {
      const isApart = !this.isSparse && point.at - before > GAP_SECONDS;
      const place = x(point.at).toFixed(1) + " " + y(point.values[line]).toFixed(1);
      // A line of one point is a dot.
      d += (isApart || !d ? "M" + place + "h.01L" : "L") + place;
      before = point.at;
    }
    return d;
  }
}
