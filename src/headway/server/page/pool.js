// The KV pool as a map: one cell per block, or per few blocks if there are many, in the colour of who holds it.

import { byId, count, palette, percent, prepare, slotColour, text } from "./format.js";

const FREE = -1;
const CACHED = -2;
const SHARED = -3;
const DRAINING = -4;
const NAMES = {
  [FREE]: "free",
  [CACHED]: "cached: free, and a prefix can find it",
  [SHARED]: "shared by several requests",
  [DRAINING]: "held by a request that has ended, until its step returns",
};

const SIZES = [14, 12, 10, 8, 7, 6, 5, 4, 3];
const MAX_HEIGHT = 220;

export class Pool {
  constructor() {
    this.canvas = byId("pool");
    this.output = byId("pool-text");
    this.runs = [];
    this.names = new Map();
    this.selected = null; // slot whose blocks stand out
    this.cursor = null; // cell under the pointer or chosen by key
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#move(null));
    this.canvas.addEventListener("blur", () => this.#move(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  show(state) {
    this.pool = state.pool;
    this.names = new Map(state.requests.rows.map((row) => [row.slot, row.request_id]));
    if (!this.names.has(this.selected)) this.selected = null;
    const flat = state.pool.runs;
    this.runs = [];
    for (let place = 0, start = 1; place < flat.length; place += 2) {
      this.runs.push({ owner: flat[place], start, end: start + flat[place + 1] });
      start += flat[place + 1];
    }
    const shared = this.runs.reduce((sum, run) => sum + (run.owner === SHARED ? run.end - run.start : 0), 0);
    text(byId("pool-held"), count(state.pool.held));
    text(byId("pool-shared"), count(shared));
    text(byId("pool-cached"), count(state.pool.cached));
    text(byId("pool-free"), count(state.pool.free));
    this.draw();
  }

  select(slot) {
    this.selected = this.selected === slot ? null : slot;
    this.draw();
  }

  draw() {
    if (!this.pool) return;
    this.#layout();
    const { context } = prepare(this.canvas, this.lines * this.size);
    const colours = palette();
    const gap = this.size >= 5 ? 1 : 0;
    this.cells.forEach((owner, cell) => {
      const x = (cell % this.perLine) * this.size;
      const y = Math.floor(cell / this.perLine) * this.size;
      context.fillStyle = this.#colour(owner, colours);
      context.fillRect(x, y, this.size - gap, this.size - gap);
      if (cell === this.cursor) {
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(x, y, this.size - gap, this.size - gap);
      }
    });
    this.#describe();
  }

  /** Choose the largest cells that fit, and give each the owner that has most of its blocks. */
  #layout() {
    const width = Math.max(this.canvas.clientWidth, 60);
    const fits = (size) => Math.floor(width / size) * Math.floor(MAX_HEIGHT / size) >= this.pool.num_blocks;
    this.size = SIZES.find(fits) ?? SIZES.at(-1);
    this.perLine = Math.floor(width / this.size);
    this.perCell = Math.ceil(this.pool.num_blocks / (this.perLine * Math.floor(MAX_HEIGHT / this.size)));
    const numCells = Math.ceil(this.pool.num_blocks / this.perCell);
    this.lines = Math.ceil(numCells / this.perLine);
    this.cells = new Int32Array(numCells).fill(FREE);
    const most = new Int32Array(numCells);
    for (const { owner, start, end } of this.runs) {
      for (let block = start; block < end; ) {
        const cell = Math.floor((block - 1) / this.perCell);
        const until = Math.min(end, (cell + 1) * this.perCell + 1);
        if (until - block > most[cell]) {
          most[cell] = until - block;
          this.cells[cell] = owner;
        }
        block = until;
      }
    }
  }

  #colour(owner, colours) {
    if (owner === FREE) return colours.free;
    if (owner === CACHED) return colours.cached;
    if (owner === DRAINING) return colours.time;
    if (owner === SHARED) return colours.shared;
    return slotColour(owner, colours, this.selected !== null && this.selected !== owner);
  }

  #describe() {
    const cell = this.cursor;
    if (cell === null || cell >= this.cells.length) {
      const size = this.perCell > 1 ? ` A cell is ${count(this.perCell)} blocks.` : "";
      const host = this.pool.host_blocks
        ? ` On the host: ${count(this.pool.host_blocks - this.pool.host_free)} of ${count(this.pool.host_blocks)} held.`
        : "";
      text(
        this.output,
        `${count(this.pool.held)} of ${count(this.pool.num_blocks)} blocks are held (${percent(this.pool.usage)}).` +
          `${size}${host}`,
      );
      return;
    }
    const first = cell * this.perCell + 1;
    const last = Math.min(first + this.perCell - 1, this.pool.num_blocks);
    const where = first === last ? `Block ${count(first)}` : `Blocks ${count(first)} to ${count(last)}`;
    const owner = this.cells[cell];
    const who = owner >= 0 ? `held by ${this.names.get(owner) ?? "another request"} in slot ${owner}` : NAMES[owner];
    text(this.output, `${where}: ${first === last ? "" : "mostly "}${who}.`);
  }

  #point(event) {
    if (!this.cells) return;
    const column = Math.floor(event.offsetX / this.size);
    const cell = Math.floor(event.offsetY / this.size) * this.perLine + column;
    this.#move(column < this.perLine && cell >= 0 && cell < this.cells.length ? cell : null);
  }

  #key(event) {
    if (!this.cells) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.perLine, ArrowDown: this.perLine };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = this.cursor === null ? 0 : this.cursor + steps[event.key];
    this.#move(Math.min(this.cells.length - 1, Math.max(0, next)));
  }

  #move(cell) {
    if (this.cursor === cell) return;
    this.cursor = cell;
    this.draw();
  }
}
