// Everything that is a number: the tiles at the top, latencies, admission, reuse and preemption, limits.

import { brief, byId, count, duration, make, mebibytes, percent, reconcile, text } from "./format.js";

const RATE_WINDOW_S = 10;

const LATENCIES = [
  ["queue_s", "In the queue"],
  ["ttft_s", "First token"],
  ["itl_s", "Between tokens"],
  ["tpot_s", "Per token, mean"],
  ["e2e_s", "Whole request"],
];

const TURNED_AWAY = { queue_full: "Turned away: too many requests", queue_tokens: "Turned away: too many tokens" };
const ENDS = {
  stop: "Ended by a stop",
  length: "Ended at their length",
  abort: "Aborted",
  error: "Failed",
  kv_capacity: "Ended: no KV memory left",
};

const PHASES = {
  schedule: "Scheduling",
  copy: "Swap copies",
  build: "Building inputs",
  forward: "The model",
  sample: "Sampling",
  collect: "Collecting",
  update: "Updating",
  output: "Text",
  other: "Everything else",
};

export function showOverview(state) {
  showTiles(state);
  showLatencies(state);
  showParts(state.steps.mean_s);
  facts(byId("admission"), admissionFacts(state));
  facts(byId("memory"), memoryFacts(state));
  const sentences = state.limits.sentences;
  reconcile(byId("limits"), sentences, (sentence) => sentence, () => make("li"), text);
}

function showTiles(state) {
  const { requests, limits, pool, latencies, prefix_cache: cache } = state;
  text(byId("running"), count(requests.running));
  text(byId("slots"), `of ${count(limits.max_num_seqs)} slots`);
  meter(byId("running-meter"), requests.running / limits.max_num_seqs, false);
  text(byId("waiting"), count(requests.waiting));
  text(byId("swapped"), requests.swapped ? `${count(requests.swapped)} on the host` : "");
  const [most] = [...requests.waiting_by_reason].sort((one, other) => other.count - one.count);
  text(byId("waiting-foot"), most ? most.title : "nobody waits");
  text(byId("kv"), percent(pool.usage));
  meter(byId("kv-meter"), pool.usage, pool.usage > 0.95);
  const rates = tokenRates(state.steps);
  text(byId("decode-rate"), brief(rates.decode));
  text(byId("prefill-rate"), `prefill ${brief(rates.prefill)} tokens/s`);
  const ttft = latencies.ttft_s.quantiles;
  text(byId("ttft"), duration(ttft?.[0]));
  text(byId("ttft-foot"), ttft ? `p99 ${duration(ttft[2])}` : "no request yet");
  text(byId("hit-rate"), cache.enabled ? percent(cache.recent.hit_rate) : "off");
  text(byId("hit-foot"), `of the last ${count(cache.recent.requests)} prompts`);
}

/** Tokens per second over the last seconds that are known. */
function tokenRates({ columns, rows }) {
  const [ago, decode, prefill] = ["ago_s", "decode_tokens", "prefill_tokens"].map((name) => columns.indexOf(name));
  const recent = rows.filter((row) => row[ago] <= RATE_WINDOW_S);
  if (!recent.length) return { decode: 0, prefill: 0 };
  const all = rows.length === recent.length;
  const window = Math.max(all ? recent[0][ago] : RATE_WINDOW_S, 1);
  const sum = (column) => recent.reduce((total, row) => total + row[column], 0) / window;
  return { decode: sum(decode), prefill: sum(prefill) };
}

function meter(element, share, full) {
  element.firstElementChild.style.width = `${Math.min(100, share * 100)}%`;
  element.classList.toggle("full", full);
}

function showLatencies({ latencies }) {
  reconcile(
    byId("latencies"),
    LATENCIES,
    ([name]) => name,
    ([, title]) =>
      make("tr", {
        children: [
          make("td", { content: title }),
          ...latencies.levels.map(() => make("td", { name: "number" })),
        ],
      }),
    (element, [name]) => {
      const { quantiles, count: number } = latencies[name];
      element.title = `${count(number)} observations`;
      [...element.children].slice(1).forEach((cell, index) => text(cell, duration(quantiles?.[index])));
    },
  );
}

function showParts(means) {
  const parts = Object.entries(means).filter(([, seconds]) => seconds > 0);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  text(byId("parts-total"), total ? duration(total) : "");
  reconcile(
    byId("parts-bar"),
    parts,
    ([phase]) => phase,
    ([phase]) => make("i", { name: `phase-${phase}` }),
    (element, [, seconds]) => (element.style.flexGrow = seconds / total),
  );
  const pairs = parts.map(([phase, seconds]) => [PHASES[phase] ?? phase, duration(seconds), `phase-${phase}`]);
  facts(byId("parts"), pairs.length ? pairs : [["No step yet", ""]]);
}

function admissionFacts({ admission, finished, refused }) {
  const found = [
    ["Unfinished requests", limited(admission.requests, admission.max_requests)],
    ["Prompt tokens in prefill", limited(admission.tokens, admission.max_tokens)],
    ...Object.entries(admission.turned_away).map(([reason, number]) => [TURNED_AWAY[reason] ?? reason, count(number)]),
    ...Object.entries(refused).map(([field, number]) => [`Refused for ever: ${field}`, count(number)]),
  ];
  for (const [reason, number] of Object.entries(finished)) {
    if (number || reason === "stop" || reason === "length") found.push([ENDS[reason] ?? reason, count(number)]);
  }
  return found;
}

function limited(number, limit) {
  return limit === null ? `${count(number)}, no limit` : `${count(number)} of ${count(limit)}`;
}

function memoryFacts({ memory, prefix_cache: cache, pool, preemptions, tokens }) {
  const found = [];
  for (const [name, tier] of [["KV memory resident", "kv"], ["Swap space resident", "host_kv"]]) {
    const reserved = memory[`${tier}_reserved_bytes`];
    if (reserved) found.push([name, mebibytes(memory[`${tier}_resident_bytes`], reserved)]);
  }
  if (cache.enabled) {
    found.push(["Found since the start", share(cache.first.hit_tokens, cache.first.query_tokens)]);
    found.push(["Found in units of", `${count(cache.match_unit_tokens)} tokens`]);
    found.push(["Cached blocks evicted", count(pool.evicted)]);
  } else {
    found.push(["Prefix cache", "off"]);
  }
  for (const { kind, cause, count: number } of preemptions) {
    if (number) found.push([`Preempted (${kind}) for ${cause === "blocks" ? "blocks" : "someone urgent"}`, count(number)]);
  }
  if (!preemptions.some(({ count: number }) => number)) found.push(["Preemptions", "0"]);
  found.push(["Tokens lost to preemptions", count(tokens.lost)]);
  found.push(["Tokens computed again", count(tokens.recomputed)]);
  if (tokens.restored) found.push(["Tokens copied back", count(tokens.restored)]);
  return found;
}

function share(part, whole) {
  return whole ? `${percent(part / whole)} of ${brief(whole)}` : "–";
}

/** Fill a list of names and values; a third part is the class of the name. */
function facts(list, pairs) {
  const wanted = pairs.flatMap(([name, value, kind = ""]) => [
    { tag: "dt", key: name, value: name, kind },
    { tag: "dd", key: `${name}=`, value, kind: "" },
  ]);
  const create = ({ tag, kind }) => make(tag, { name: kind });
  reconcile(list, wanted, (item) => item.key, create, (element, item) => text(element, item.value));
}
