// The last steps as bars: tokens on top, decode below prefill, and the time that each step took underneath.

import { byId, count, duration, palette, percent, prepare, text } from "./format.js";

const STEP_WIDTH = 4;
const TIME_SHARE = 0.24;
const LABEL = 46;

export class Steps {
  constructor() {
    this.canvas = byId("steps");
    this.output = byId("steps-text");
    this.steps = [];
    this.budget = 0;
    this.chosen = null; // number of the step under the pointer or chosen by key
    this.canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.#choose(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#choose(null));
  }

  show(state) {
    const { columns, rows } = state.steps;
    this.steps = rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
    this.budget = state.limits.max_num_batched_tokens;
    this.draw();
  }

  draw() {
    const { context, width, height } = prepare(this.canvas);
    const colours = palette();
    const room = Math.floor((width - LABEL) / STEP_WIDTH);
    this.visible = this.steps.slice(-room);
    this.left = width - this.visible.length * STEP_WIDTH;
    const lower = Math.round(height * TIME_SHARE);
    const upper = height - lower - 6;
    const mostTokens = Math.max(1, ...this.visible.map((step) => step.decode_tokens + step.prefill_tokens));
    const top = mostTokens > this.budget / 4 ? this.budget : niceAbove(mostTokens);
    const longest = Math.max(1e-6, ...this.visible.map((step) => step.step_s));
    this.#axis(context, colours, width, upper, top, longest, height - lower);
    this.visible.forEach((step, index) => {
      const x = this.left + index * STEP_WIDTH;
      const decode = (step.decode_tokens / top) * upper;
      const prefill = (step.prefill_tokens / top) * upper;
      const time = (step.step_s / longest) * lower;
      context.globalAlpha = this.chosen === null || this.chosen === step.step ? 1 : 0.45;
      bar(context, colours.decode, x, upper, decode);
      bar(context, colours.prefill, x, upper - decode, prefill);
      bar(context, colours.time, x, height, time);
    });
    context.globalAlpha = 1;
    this.#describe();
  }

  #axis(context, colours, width, upper, top, longest, timeTop) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(upper * (1 - share)) + 0.5;
      context.beginPath();
      context.moveTo(LABEL, y);
      context.lineTo(width, y);
      context.stroke();
      context.fillStyle = colours.quiet;
      if (share > 0) context.fillText(count(top * share), 0, y + (share === 1 ? 0 : -6));
    }
    context.fillText(duration(longest), 0, timeTop);
    if (top === this.budget) {
      context.strokeStyle = colours.quiet;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(LABEL, 0.5);
      context.lineTo(width, 0.5);
      context.stroke();
      context.setLineDash([]);
    }
  }

  #describe() {
    if (!this.steps.length) {
      text(this.output, "No step yet.");
      return;
    }
    const step = this.visible.find((each) => each.step === this.chosen);
    if (step) {
      text(
        this.output,
        `Step ${count(step.step)}: ${count(step.decode_tokens)} decode + ${count(step.prefill_tokens)} prefill` +
          ` tokens in ${count(step.rows)} rows, ${duration(step.step_s)}; then ${count(step.running)} running,` +
          ` ${count(step.waiting)} waiting, ${percent(step.kv_usage)} of the blocks held.`,
      );
      return;
    }
    const tokens = this.visible.reduce((sum, each) => sum + each.decode_tokens + each.prefill_tokens, 0);
    const mean = tokens / this.visible.length;
    text(
      this.output,
      `The last ${count(this.visible.length)} steps used ${percent(mean / this.budget)} of the budget of` +
        ` ${count(this.budget)} tokens a step, ${count(mean)} on average.`,
    );
  }

  #point(x) {
    const index = Math.floor((x - this.left) / STEP_WIDTH);
    this.#choose(this.visible[index]?.step ?? null);
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || !this.visible.length) return;
    event.preventDefault();
    const last = this.visible.length - 1;
    const now = this.visible.findIndex((step) => step.step === this.chosen);
    const next = now < 0 ? last : Math.min(last, Math.max(0, now + move));
    this.#choose(this.visible[next].step);
  }

  #choose(step) {
    if (this.chosen === step) return;
    this.chosen = step;
    this.draw();
  }
}

function bar(context, colour, x, bottom, height) {
  if (height <= 0) return;
  context.fillStyle = colour;
  context.fillRect(x, bottom - Math.max(height, 1), STEP_WIDTH - 1, Math.max(height, 1));
}

/** The smallest of 1, 2, 5, 10, 20, 50, ... that is at least this. */
function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value);
}
