"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const FULL = Math.max( // seconds: all timelines of a page have one scale
  ...DATA.flatMap((exhibit) => Object.values(exhibit.views).map((view) => view.seconds)));
const RUN = 24, MSG = 7, NODE = 9, GAP = 10, TOP = 22, MEM = 110;
const tip = document.createElement("div");
tip.className = "tip"; tip.hidden = true; document.body.append(tip);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const time = (s) => s >= 1 ? s.toPrecision(3) + " s" : s >= 1e-3 ? (s * 1e3).toPrecision(3) + " ms"
  : (s * 1e6).toPrecision(3) + " µs";
const mib = (b) => b >= 2 ** 30 ? (b / 2 ** 30).toFixed(2) + " GiB" : b >= 2 ** 20
  ? (b / 2 ** 20).toFixed(1) + " MiB" : (b / 1024).toFixed(1) + " KiB";

/* A timeline of one exhibit on a canvas: runs, messages and nodes of each rank, memory below. */
class Timeline {
  constructor(element, exhibit) {
    this.exhibit = exhibit; this.element = element; this.name = "measured";
    this.full = FULL;
    this.from = 0; this.to = this.full;
    this.canvas = element.querySelector("canvas");
    this.buttons = [...element.querySelectorAll("button")];
    for (const button of this.buttons) button.addEventListener("click", () => this.press(button));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointerup", () => { this.grip = null; });
    this.canvas.addEventListener("pointerleave", () => { tip.hidden = true; this.grip = null; });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, this.at(event.offsetX));
    }, { passive: false });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.at(event.offsetX)));
    new ResizeObserver(() => this.draw()).observe(element);
    for (const media of ["(prefers-color-scheme: dark)", "print"])
      matchMedia(media).addEventListener("change", () => this.draw());
    this.draw();
  }
  get view() { return this.exhibit.views[this.name]; }
  get left() { return this.canvas.clientWidth < 600 ? 8 : 96; }
  get width() { return this.canvas.clientWidth - this.left - 8; }
  x(seconds) { return this.left + this.width * (seconds - this.from) / (this.to - this.from); }
  at(x) { return this.from + (this.to - this.from) * (x - this.left) / this.width; }
  press(button) {
    const { view, zoom } = button.dataset;
    if (view) {
      this.name = view;
      for (const b of this.buttons) if (b.dataset.view) b.setAttribute("aria-pressed", b === button);
      this.element.dataset.shown = view;
      this.draw();
    } else if (zoom === "reset") { this.from = 0; this.to = this.full; this.draw(); }
    else this.zoom(Number(zoom), (this.from + this.to) / 2);
  }
  zoom(factor, centre) {
    const span = Math.min(this.full, Math.max(this.full * 1e-5, (this.to - this.from) * factor));
    const share = (centre - this.from) / (this.to - this.from);
    this.show(centre - share * span, span);
  }
  show(from, span) {
    this.from = Math.max(0, Math.min(from, this.full - span)); this.to = this.from + span;
    this.draw();
  }
  lane(rank) { return TOP + rank * (RUN + MSG + NODE + GAP + (this.left < 50 ? 20 : 0)); }
  get bottom() { return this.lane(this.exhibit.ranks.length); }
  draw() {
    const ratio = window.devicePixelRatio || 1, font = "12px system-ui, sans-serif";
    const pen = this.pen = this.canvas.getContext("2d");
    pen.font = font;
    this.peaks = this.legend();
    const height = this.level + MEM + 16;
    this.canvas.style.height = height + "px";
    this.canvas.width = this.canvas.clientWidth * ratio; this.canvas.height = height * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.clientWidth, height);
    pen.font = font; pen.textBaseline = "middle";
    this.axis(height);
    this.exhibit.ranks.forEach((name, rank) => this.row(name, rank));
    this.arrows();
    this.exhibit.ranks.forEach((name, rank) => this.title(name, rank));
    this.memory();
    this.element.dataset.drawn = `${this.from} ${this.to}`;
  }
  axis(height) {
    const pen = this.pen, span = this.to - this.from;
    const least = span / Math.max(2, this.width / 110), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least);
    pen.strokeStyle = style("--line"); pen.fillStyle = style("--soft"); pen.lineWidth = 1;
    pen.textAlign = "center";
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      pen.beginPath(); pen.moveTo(this.x(t), TOP - 6); pen.lineTo(this.x(t), height - 12); pen.stroke();
      if (this.x(t) < this.canvas.clientWidth - 24) pen.fillText(t > 0 ? time(t) : "0", Math.max(10, this.x(t)), 8);
    }
  }
  /* The name of a rank: beside its row, or above it, where arrows pass below it. */
  title(name, rank) {
    const pen = this.pen, narrow = this.left < 50, x = narrow ? this.left : 4;
    const y = this.lane(rank) + (narrow ? 12 : RUN / 2);
    pen.textAlign = "left";
    pen.fillStyle = style("--paper");
    if (narrow) pen.fillRect(x, y - 8, pen.measureText(name).width + 4, 15);
    pen.fillStyle = style("--ink");
    pen.fillText(name, x, y);
  }
  row(name, rank) {
    const pen = this.pen, view = this.view, narrow = this.left < 50;
    const y = this.lane(rank) + (narrow ? 20 : 0);
    pen.fillStyle = style("--lane"); pen.fillRect(this.left, y, this.width, RUN);
    pen.textAlign = "center";
    const colours = Object.fromEntries([..."FBIWom"].map((k) => [k, style("--" + k)]));
    for (const [start, end, kind, label] of view.boxes[rank]) {
      if (end < this.from || start > this.to) continue;
      const a = Math.max(this.left, this.x(start));
      const b = Math.min(this.left + this.width, this.x(end)), message = kind === "m";
      pen.fillStyle = colours[kind];
      pen.fillRect(a, message ? y + RUN + 1 : y, Math.max(0.6, b - a - 0.4), message ? MSG - 2 : RUN);
      if (!message && b - a > 9 * label.length) {
        pen.fillStyle = "#111"; pen.fillText(label, (a + b) / 2, y + RUN / 2);
      }
    }
    view.nodes[rank].forEach(([start, end], i) => {
      if (end < this.from || start > this.to) return;
      pen.fillStyle = i % 2 ? style("--soft") : style("--o");
      const a = Math.max(this.left, this.x(start)), b = Math.min(this.left + this.width, this.x(end));
      pen.fillRect(a, y + RUN + MSG, Math.max(0.4, b - a), NODE - 2);
    });
  }
  arrows() {
    const pen = this.pen, narrow = this.left < 50 ? 20 : 0;
    const seen = this.view.arrows.filter(([, a, , b]) => b >= this.from && a <= this.to);
    if (seen.length > 400) return; // a thicket says nothing: zoom in
    pen.strokeStyle = style("--ink"); pen.globalAlpha = 0.35; pen.lineWidth = 0.8;
    pen.save(); pen.beginPath(); pen.rect(this.left, 0, this.width, this.bottom); pen.clip();
    for (const [source, sent, target, got] of seen) {
      const down = source < target;
      const y1 = this.lane(source) + narrow + (down ? RUN : 0);
      const y2 = this.lane(target) + narrow + (down ? 0 : RUN);
      pen.beginPath(); pen.moveTo(this.x(sent), y1); pen.lineTo(this.x(got), y2); pen.stroke();
    }
    pen.restore(); pen.globalAlpha = 1;
  }
  /* Each rank's peak, and where it is written: in as many rows as it takes. */
  legend() {
    const start = this.left < 50 ? this.left + 56 : this.left;
    let x = start, row = 0;
    return this.view.memory.map((held, rank) => {
      const text = `${this.exhibit.ranks[rank]}: peak ${mib(held.peak)}`;
      const wide = this.pen.measureText(text).width + 18;
      if (x > start && x + wide > this.left + this.width) { x = start; row += 1; }
      x += wide;
      return { text, x: x - wide, y: this.bottom + 14 + 15 * row };
    });
  }
  get level() { return Math.max(...this.peaks.map((peak) => peak.y)) + 14; }
  memory() {
    const pen = this.pen, top = this.level, memory = this.view.memory;
    const most = Math.max(1, ...memory.map((m) => m.peak));
    const level = (bytes) => top + MEM - MEM * bytes / (most * 1.05);
    const inks = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
    pen.textAlign = "left"; pen.fillStyle = style("--soft");
    pen.fillText("memory", this.left < 50 ? this.left : 4, this.bottom + 14);
    pen.save(); pen.beginPath(); pen.rect(this.left, top - 10, this.width, MEM + 20); pen.clip();
    memory.forEach((held, rank) => {
      pen.strokeStyle = inks[rank % inks.length]; pen.lineWidth = 1.6; pen.beginPath();
      let y = level(held.bytes[0] || 0);
      pen.moveTo(this.x(0), y);
      held.at.forEach((at, i) => {
        pen.lineTo(this.x(at), y); y = level(held.bytes[i]); pen.lineTo(this.x(at), y);
      });
      pen.lineTo(this.x(this.view.seconds), y); pen.stroke();
    });
    pen.restore();
    this.peaks.forEach(({ text, x, y }, rank) => {
      pen.fillStyle = inks[rank % inks.length]; pen.fillText(text, x, y);
    });
  }
  down(event) { this.grip = { x: event.offsetX, from: this.from }; }
  move(event) {
    if (this.grip && event.buttons) {
      const shift = (event.offsetX - this.grip.x) / this.width * (this.to - this.from);
      this.show(this.grip.from - shift, this.to - this.from);
    }
    const lines = this.lines(event.offsetX, event.offsetY);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((line, i) => {
      const part = document.createElement(i ? "div" : "b"); part.textContent = line; return part;
    }));
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6) + "px";
  }
  /* What is under the pointer, in lines of text; null: nothing. */
  lines(x, y) {
    const at = this.at(x), view = this.view, slack = 2 * (this.to - this.from) / this.width;
    if (y > this.bottom) return this.held(at);
    const narrow = this.left < 50 ? 20 : 0;
    const rank = this.exhibit.ranks.findIndex((_, r) => y < this.lane(r + 1));
    const inside = y - this.lane(rank) - narrow;
    if (rank < 0 || inside < 0) return null;
    if (inside >= RUN + MSG) {
      const node = view.nodes[rank].find(([a, b]) => a - slack / 4 <= at && at <= b + slack / 4);
      return node ? [node[2], node[3]] : null;
    }
    const message = inside >= RUN;
    const found = view.boxes[rank].filter(([a, b, kind]) => (kind === "m") === message
      && a - slack <= at && at <= b + slack);
    if (!found.length) return null;
    const [a, b, kind, , lines] = found.reduce((p, q) => q[0] <= at && at <= q[1] ? q : p);
    if (kind === "m" || kind === "o") return lines;
    const nodes = view.nodes[rank].filter((n) => n[0] >= a && n[1] <= b)
      .sort((p, q) => (q[1] - q[0]) - (p[1] - p[0])).slice(0, 5);
    return [...lines, ...nodes.map((n) => `${n[2]}: ${n[3]}`)];
  }
  held(at) {
    if (at < 0 || at > this.full) return null;
    return [`memory at ${time(at)}`, ...this.view.memory.map((m, rank) => {
      const next = m.at.findIndex((t) => t > at);
      const bytes = m.bytes[(next < 0 ? m.at.length : Math.max(1, next)) - 1] || 0;
      return `${this.exhibit.ranks[rank]}: ${mib(bytes)}`;
    })];
  }
}

document.querySelectorAll(".timeline").forEach((element, i) => new Timeline(element, DATA[i]));

/* A drawing that fits its frame, and can be zoomed and moved. */
class Drawing {
  constructor(frame) {
    this.svg = frame.querySelector("svg");
    const { width, height } = this.svg.viewBox.baseVal;
    this.whole = this.box = { x: 0, y: 0, width, height };
    for (const button of frame.querySelectorAll("button")) button.addEventListener("click", () => {
      const zoom = button.dataset.zoom;
      if (zoom === "reset") this.show(this.whole);
      else this.zoom(Number(zoom), 0.5, 0.5);
    });
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const frame = this.svg.getBoundingClientRect();
      this.zoom((event.deltaY || event.deltaX) < 0 ? 0.8 : 1.25,
        (event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height);
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => {
      this.grip = { x: event.clientX, y: event.clientY, box: this.box };
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"])
      this.svg.addEventListener(name, () => { this.grip = null; });
  }
  show(box) {
    this.box = box;
    this.svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width} ${box.height}`);
  }
  /* Zoom about a point of the frame, whose sides are 1. */
  zoom(factor, across, down) {
    const { x, y, width, height } = this.box;
    const scale = Math.min(1, Math.max(0.02, factor * width / this.whole.width)) * this.whole.width / width;
    this.show({ x: x + across * width * (1 - scale), y: y + down * height * (1 - scale),
      width: width * scale, height: height * scale });
  }
  move(event) {
    if (!this.grip) return;
    const { x, y, box } = this.grip, scale = 1 / this.svg.getScreenCTM().a;
    this.show({ ...box, x: box.x - (event.clientX - x) * scale, y: box.y - (event.clientY - y) * scale });
  }
}

document.querySelectorAll(".graph").forEach((frame) => new Drawing(frame));

/* Tables are sorted by the column whose head is clicked; a search keeps the rows that have its words. */
const value = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent;
document.querySelectorAll(".table").forEach((element) => {
  const heads = [...element.querySelectorAll("th")], body = element.querySelector("tbody");
  heads.forEach((head, i) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].sort((p, q) => {
      const [a, b] = [value(p, i), value(q, i)], order = a - b || (isNaN(a - b) ? a.localeCompare(b) : 0);
      return down ? -order : order;
    }));
  }));
  const count = element.querySelector(".count"), all = count.textContent;
  element.querySelector("input")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${all}` : all;
  });
});

/* On paper everything is open. */
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
