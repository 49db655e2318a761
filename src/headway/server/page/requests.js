// The two tables of requests: what those in a slot do, and why the others wait.

import { age, byId, count, duration, make, palette, percent, plural, reconcile, slotColour, text } from "./format.js";

const SHOWN = 12; // requests of a table, unless all are asked for

export class Requests {
  /** `onSelect(slot)` is called when the blocks of a request are to stand out. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.own = new Set(); // calls of this page's chat
    this.showsAll = { rows: false, queue: false };
    for (const table of Object.keys(this.showsAll)) {
      byId(`${table}-more`).addEventListener("click", (event) => {
        this.showsAll[table] = !this.showsAll[table];
        event.target.setAttribute("aria-pressed", String(this.showsAll[table]));
        this.show(...this.shown);
      });
    }
  }

  show(state, selected) {
    this.shown = [state, selected];
    const { running, waiting } = state.requests;
    const rows = this.#cut("rows", state.requests.rows, running);
    const queue = this.#cut("queue", state.requests.queue, waiting);
    const colours = palette();
    reconcile(byId("rows"), rows, (row) => row.request_id, () => this.#makeRow(), (element, row) =>
      this.#fillRow(element, row, colours, selected),
    );
    reconcile(byId("queue"), queue, (entry) => entry.request_id, makeWaiting, (element, entry) =>
      this.#fillWaiting(element, entry),
    );
    byId("rows-empty").hidden = running > 0;
    byId("queue-empty").hidden = waiting > 0;
    reconcile(
      byId("reasons"),
      state.requests.waiting_by_reason,
      (reason) => reason.code,
      () => make("li"),
      (element, reason) => text(element, `${count(reason.count)} ${reason.title}`),
    );
  }

  /** The first requests of a table and those of this page, or all that the server told of. */
  #cut(table, entries, number) {
    const all = this.showsAll[table];
    const button = byId(`${table}-more`);
    button.hidden = number <= SHOWN;
    const most = entries.length < number ? `the first ${count(entries.length)} of ${count(number)}` : `all ${count(number)}`;
    text(button, all ? `Show the first ${SHOWN}` : `Show ${most}`);
    return all ? entries : entries.filter((entry, place) => place < SHOWN || this.own.has(entry.request_id));
  }

  #makeRow() {
    const swatch = make("button", { name: "swatch", type: "button", "aria-pressed": "false" });
    swatch.addEventListener("click", () => this.onSelect(Number(swatch.dataset.slot)));
    return make("tr", {
      children: [
        make("td", { children: [make("div", { name: "name", children: [swatch, make("span")] })] }),
        make("td", {
          children: [
            make("div", {
              name: "progress",
              children: [make("div", { name: "meter", children: [make("i")] }), make("span")],
            }),
            make("div", { name: "why" }),
          ],
        }),
        make("td", { name: "number" }),
        make("td", { name: "number extra" }),
        make("td", { name: "number" }),
        make("td", { name: "number" }),
      ],
    });
  }

  #fillRow(element, row, colours, selected) {
    const [name, progress, prompt, cached, blocks, since] = element.children;
    const swatch = name.querySelector("button");
    swatch.dataset.slot = row.slot;
    swatch.style.backgroundColor = slotColour(row.slot, colours);
    swatch.setAttribute("aria-pressed", String(selected === row.slot));
    swatch.setAttribute("aria-label", `Show the blocks of ${row.request_id}`);
    fillName(name.querySelector("span"), row.request_id);
    element.classList.toggle("own", this.own.has(row.request_id));
    fillProgress(progress, row);
    text(progress.querySelector(".why"), notes(row));
    text(prompt, count(row.num_prompt_tokens));
    text(cached, row.num_cached_tokens ? count(row.num_cached_tokens) : "–");
    text(blocks, count(row.num_blocks));
    text(since, age(row.age_s));
  }

  #fillWaiting(element, entry) {
    const [place, name, why, prompt, since] = element.children;
    const { reason } = entry;
    text(place, count(entry.place + 1));
    fillName(name.querySelector("span"), entry.request_id);
    element.classList.toggle("own", this.own.has(entry.request_id));
    text(name.querySelector(".why"), waitingNotes(entry));
    const [title, sentences] = why.firstElementChild.children;
    if (element.dataset.code !== reason.code) {
      // The sentences are open for what has a reason of its own; all others wait for those.
      element.dataset.code = reason.code;
      why.firstElementChild.open = reason.code !== "queue_position";
    }
    text(title, `${upper(reason.title)}, ${duration(entry.since_s)}`);
    const by = reason.by.length ? ` In the way: ${reason.by.join(", ")}.` : "";
    text(sentences, `${reason.text} Until: ${lower(reason.release)}${by}`);
    text(prompt, count(entry.num_prompt_tokens));
    text(since, age(entry.age_s));
  }
}

function makeWaiting() {
  return make("tr", {
    children: [
      make("td", { name: "number place" }),
      make("td", {
        children: [make("div", { name: "name", children: [make("span")] }), make("div", { name: "why" })],
      }),
      make("td", {
        children: [make("details", { name: "why", children: [make("summary"), make("p")] })],
      }),
      make("td", { name: "number" }),
      make("td", { name: "number" }),
    ],
  });
}

function fillName(element, requestId) {
  text(element, requestId);
  element.title = requestId;
}

/** In prefill, how much of the known tokens is computed; then, how much of its limit the output has reached. */
function fillProgress(cell, row) {
  const left = row.num_known_tokens - row.num_computed_tokens;
  const inPrefill = left > 1;
  const limit = row.max_tokens_in_all - row.num_prompt_tokens;
  const [done, all] = inPrefill
    ? [row.num_computed_tokens, row.num_known_tokens]
    : [row.num_output_tokens, limit];
  const fill = cell.querySelector("i");
  fill.className = inPrefill ? "prefill" : "";
  fill.style.width = percent(Math.min(1, done / Math.max(all, 1))).replace(" ", "");
  text(cell.querySelector(".progress span"), `${inPrefill ? "prefill " : ""}${count(done)} / ${count(all)}`);
}

function notes(row) {
  const parts = [];
  if (row.reason) parts.push(`left out: ${row.reason.title}`);
  if (row.num_preemptions) parts.push(preemptions(row));
  return parts.join("; ");
}

function waitingNotes(entry) {
  if (!entry.num_preemptions) return "";
  const by = entry.preempted_by ? `, last for ${entry.preempted_by}` : "";
  const where = entry.state === "swapped" ? "; its KV is on the host" : "";
  return `${preemptions(entry)}${by}${where}`;
}

function preemptions(entry) {
  const lost = entry.num_lost_tokens ? `, ${plural(entry.num_lost_tokens, "token")} lost` : "";
  return `preempted ${entry.num_preemptions === 1 ? "once" : `${count(entry.num_preemptions)} times`}${lost}`;
}

const upper = (sentence) => sentence[0].toUpperCase() + sentence.slice(1);
const lower = (sentence) => sentence[0].toLowerCase() + sentence.slice(1);
