// A plot of one figure over time, as SVG.

import { make, write } from "./dom.js";
import { clock } from "./figures.js";

const [WIDTH, HEIGHT, ROOM] = [600, 120, 4];
const GAP = 2.5; // so many usual steps without a sample are a gap in the line

const svg = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

export class Plot {
  /** `figure` puts a value into words. */
  constructor(title, figure) {
    Object.assign(this, { title, figure, points: [] });
    this.now = make("output");
    this.most = make("span", { class: "most" });
    this.ends = [make("span"), make("span")];
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    this.mark = svg("path", { class: "mark", "vector-effect": "non-scaling-stroke" });
    this.picture.append(this.area, this.line, this.mark);
    const frame = make("div", { class: "frame" }, this.most, this.picture);
    this.node = make("figure", {}, make("figcaption", {}, title, " ", this.now), frame);
    this.node.append(make("div", { class: "ends quiet" }, ...this.ends));
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.rest());
  }

  /** Show values at times, null for unknown ones, between two times. */
  show(times, values, from, to) {
    const known = times.map((at, index) => ({ at, value: values[index] })).filter(({ value }) => value !== null);
    const most = Math.max(0, ...known.map(({ value }) => value));
    const across = (at) => (WIDTH * (at - from)) / (to - from);
    const down = (value) => HEIGHT - ROOM - ((HEIGHT - 2 * ROOM) * value) / (most || 1);
    this.points = known.map((each) => ({ ...each, x: across(each.at), y: down(each.value) }));
    const step = ((to - from) / 3600 > 1 ? 600 : 60) * GAP;
    const runs = runsOf(this.points, step);
    const path = (run) => run.map(({ x, y }, place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    this.line.setAttribute("d", runs.map((run) => path(run) + (run.length === 1 ? "h1" : "")).join(""));
    const under = (run) => `${path(run)}V${HEIGHT}H${run[0].x.toFixed(1)}Z`;
    this.area.setAttribute("d", runs.filter((run) => run.length > 1).map(under).join(""));
    write(this.most, known.length ? this.figure(most) : "no samples yet");
    write(this.ends[0], clock(from));
    write(this.ends[1], clock(to));
    const last = known.at(-1);
    const told = last ? `now ${this.figure(last.value)}, at most ${this.figure(most)}` : "no samples yet";
    this.picture.setAttribute("aria-label", `${this.title}: ${told}`);
    this.rest();
  }

  rest() {
    const last = this.points.at(-1);
    write(this.now, last ? this.figure(last.value) : "");
    this.mark.setAttribute("d", "");
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const x = (WIDTH * (event.clientX - box.left)) / box.width;
    const distance = (each) => Math.abs(each.x - x);
    const nearest = this.points.reduce((best, each) => (!best || distance(each) < distance(best) ? each : best), null);
    if (!nearest) return;
    write(this.now, `${this.figure(nearest.value)} at ${clock(nearest.at)}`);
    this.mark.setAttribute("d", `M${nearest.x.toFixed(1)} 0V${HEIGHT}`);
  }
}

/** Cut points apart where there is a gap. */
function runsOf(points, gap) {
  const runs = [];
  for (const each of points) {
    const before = runs.at(-1)?.at(-1);
    if (before && each.at - before.at <= gap) runs.at(-1).push(each);
    else runs.push([each]);
  }
  return runs;
}
