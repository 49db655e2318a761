// A chat box: a conversation that streams, and can be stopped.

import { call, events, KeyWanted } from "./api.js";
import { byId, count, duration, make, text } from "./format.js";

export class Chat {
  /** `onRequest(id)` is told the name of each call, `onKeyWanted(message)` that a key is missing. */
  constructor({ onRequest, onKeyWanted }) {
    this.onRequest = onRequest;
    this.onKeyWanted = onKeyWanted;
    this.messages = [];
    this.stopper = null;
    this.log = byId("chat-log");
    this.input = byId("chat-input");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("chat-stop").addEventListener("click", () => this.stopper?.abort());
    byId("chat-clear").addEventListener("click", () => this.clear());
  }

  clear() {
    this.stopper?.abort();
    this.messages = [];
    this.log.querySelectorAll(".turn").forEach((turn) => turn.remove());
    byId("chat-empty").hidden = false;
    text(byId("chat-stats"), "");
    this.input.focus();
  }

  async send() {
    const content = this.input.value.trim();
    if (!content || this.stopper) return;
    this.input.value = "";
    this.messages.push({ role: "user", content });
    this.#turn("user", "You", content);
    const answer = this.#turn("assistant", "Model", "");
    const finished = await this.#stream(answer);
    if (finished) this.messages.push({ role: "assistant", content: answer.textContent });
    else this.messages.pop();
  }

  /** Stream an answer into an element; whether it is one to go on from. */
  async #stream(answer) {
    const stopper = (this.stopper = new AbortController());
    this.#busy(true);
    const timing = { start: performance.now(), first: null, tokens: null, end: "" };
    try {
      const name = `page-${randomName()}`;
      this.onRequest(name);
      const response = await call("/v1/chat/completions", { body: this.#body(), signal: stopper.signal, name });
      for await (const event of events(response)) this.#take(event, answer, timing);
      return true;
    } catch (error) {
      if (stopper.signal.aborted) {
        timing.end = "stopped";
        return answer.textContent !== "";
      }
      if (error instanceof KeyWanted) this.onKeyWanted(error.message);
      answer.parentElement.append(make("p", { name: "problem", content: error.message }));
      return false;
    } finally {
      this.stopper = null;
      this.#busy(false);
      this.#tellTiming(timing);
    }
  }

  #body() {
    const tokens = Number(byId("chat-tokens").value);
    const temperature = Number(byId("chat-temperature").value);
    return {
      messages: this.messages,
      stream: true,
      stream_options: { include_usage: true },
      max_completion_tokens: Math.max(1, Math.round(tokens) || 256),
      temperature: Math.min(2, Math.max(0, temperature || 0)),
    };
  }

  #take(event, answer, timing) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) timing.tokens = event.usage.completion_tokens;
    for (const choice of event.choices ?? []) {
      if (choice.finish_reason) timing.end = choice.finish_reason;
      const thought = choice.delta?.reasoning;
      const piece = thought || choice.delta?.content;
      if (!piece) continue;
      if (timing.first === null) {
        timing.first = performance.now();
        text(byId("chat-stats"), "streaming …");
      }
      const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 24;
      (thought ? reasoningOf(answer) : answer).append(piece);
      if (atEnd) this.log.scrollTop = this.log.scrollHeight;
    }
  }

  #tellTiming({ start, first, tokens, end }) {
    const parts = [];
    if (first) parts.push(`first text after ${duration((first - start) / 1000)}`);
    if (tokens) {
      parts.push(`${count(tokens)} tokens`);
      const seconds = (performance.now() - first) / 1000;
      if (first && tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (end) parts.push(end === "length" ? "cut at its length" : end);
    text(byId("chat-stats"), parts.join(" · "));
  }

  #turn(role, name, content) {
    byId("chat-empty").hidden = true;
    const body = make("p", { content });
    this.log.append(make("div", { name: `turn ${role}`, children: [make("h3", { content: name }), body] }));
    this.log.scrollTop = this.log.scrollHeight;
    return body;
  }

  /** While an answer streams it is marked busy, so that it is read out when it is there and not word by word. */
  #busy(busy) {
    this.log.setAttribute("aria-busy", String(busy));
    const stopHadFocus = document.activeElement === byId("chat-stop");
    byId("chat-send").hidden = busy;
    byId("chat-stop").hidden = !busy;
    if (!busy && stopHadFocus) this.input.focus();
    if (busy) text(byId("chat-stats"), "waiting for the first text …");
  }
}

/** Sixteen random hexadecimal digits. */
function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The paragraph in front of an answer that has its reasoning. */
function reasoningOf(answer) {
  if (!answer.previousElementSibling.classList.contains("reasoning")) answer.before(make("p", { name: "reasoning" }));
  return answer.previousElementSibling;
}
