// Asks the server how it is, once a second while somebody looks, and hands the answer to the parts of the page.

import { call, KeyWanted, storedKey, storeKey } from "./api.js";
import { Chat } from "./chat.js";
import { age, byId, count, text } from "./format.js";
import { showOverview } from "./overview.js";
import { Pool } from "./pool.js";
import { Requests } from "./requests.js";
import { Steps } from "./steps.js";

const INTERVAL_MS = 1000;
const UNREACHABLE_MS = 3000;
const STALE_S = 2;

const STATES = {
  ok: ["running", "good"],
  draining: ["draining", "warn"],
  frozen: ["frozen", "bad"],
  dead: ["engine dead", "bad"],
};

const steps = new Steps();
const pool = new Pool();
const requests = new Requests((slot) => {
  pool.select(slot);
  if (last) requests.show(last, pool.selected);
});
new Chat({ onRequest: (id) => requests.own.add(id), onKeyWanted: askForKey });

let last = null;
let timer = 0;
let asking = false;
let paused = false;

async function look() {
  clearTimeout(timer);
  if (asking || paused || document.hidden || byId("key-dialog").open) return;
  asking = true;
  let wait = INTERVAL_MS;
  try {
    const response = await call("/debug/state");
    show(await response.json());
  } catch (error) {
    if (error instanceof KeyWanted) askForKey(storedKey() ? error.message : "");
    else {
      wait = UNREACHABLE_MS;
      pill("unreachable", "bad");
      notice(`The server cannot be reached (${error.message}). What is shown is old.`);
    }
  } finally {
    asking = false;
    timer = setTimeout(look, wait);
  }
}

function show(state) {
  last = state;
  text(byId("model"), state.model);
  document.title = `${state.requests.running} running, ${state.requests.waiting} waiting | Headway`;
  const [name, kind] = STATES[state.health.status] ?? [state.health.status, "warn"];
  const idle = state.health.status === "ok" && !state.health.busy;
  pill(idle ? "idle" : name, kind);
  const since = state.health.last_step_age_s;
  text(byId("clock"), since === null ? "no step yet" : `step ${count(state.step)}, ${age(since)} ago`);
  byId("key-button").hidden = !storedKey();
  const old = state.snapshot_age_s > STALE_S;
  notice(
    old
      ? `The engine has not answered for ${age(state.snapshot_age_s)}: a step takes long, or it is stuck. What is shown is that old.`
      : "",
  );
  showOverview(state);
  pool.show(state);
  requests.show(state, pool.selected);
  steps.show(state);
}

function pill(name, kind) {
  text(byId("status"), name);
  byId("status").className = `pill ${kind}`;
}

function notice(message) {
  byId("notice").hidden = !message;
  text(byId("notice"), message);
}

function askForKey(problem) {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  text(byId("key-problem"), problem);
  byId("key-input").value = "";
  dialog.returnValue = "";
  pill("key wanted", "warn");
  dialog.showModal();
}

byId("key-form").addEventListener("submit", () => storeKey(byId("key-input").value.trim()));
byId("key-dialog").addEventListener("close", (event) => {
  if (event.target.returnValue === "use") look();
  else byId("key-button").hidden = false; // not now: this button asks again
});
byId("key-button").addEventListener("click", () => {
  storeKey("");
  askForKey("");
});
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  text(byId("pause"), paused ? "Paused" : "Pause");
  look();
});
document.addEventListener("visibilitychange", () => look());

function redraw() {
  if (!last) return;
  pool.draw();
  steps.draw();
  requests.show(last, pool.selected);
}
new ResizeObserver(redraw).observe(document.querySelector("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

look();
