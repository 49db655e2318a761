// Numbers and times for people, and elements for numbers.

const GROUPED = new Intl.NumberFormat("en");

/** A count with its thousands apart. */
export function count(value) {
  return GROUPED.format(Math.round(value));
}

/** A count in few characters: 1,234 and 56.7k. */
export function brief(value) {
  if (value < 10_000) return count(value);
  return value < 1e6 ? `${(value / 1e3).toFixed(1)}k` : `${(value / 1e6).toFixed(1)}M`;
}

/** A duration in seconds, in the unit that suits it. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** How long ago something was, in whole seconds, so that it does not flicker. */
export function age(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
}

/** A share of 1. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

/** Of so much memory, so much: "60 of 8,192 MiB". */
export function mebibytes(part, whole) {
  return `${count(part / 2 ** 20)} of ${count(whole / 2 ** 20)} MiB`;
}

/** "1 request", "2 requests". */
export function plural(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

export const byId = (id) => document.getElementById(id);

/** Set the text of an element, if it changed: what is selected stays selected. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** A new element with a class, a text and children. Text never becomes markup. */
export function make(tag, { name = "", content = "", children = [], ...attributes } = {}) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (content) element.textContent = content;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/**
 * Bring the children of an element in line with a list, keeping those that stay: focus and selection survive.
 * `create(item)` makes an element, `update(element, item)` fills it.
 */
export function reconcile(parent, items, keyOf, create, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = before.get(key);
    before.delete(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of before.values()) gone.remove();
}

/** The colour of a slot: neighbours in the order of slots are far apart in hue, and of one hue not equally light. */
export function slotColour(slot, palette, dimmed = false) {
  const hue = (250 + slot * 137.508) % 360;
  const light = Number(palette.ownerLight) + ((Math.floor(slot / 5) % 3) - 1) * 0.07;
  return `oklch(${light.toFixed(2)} ${palette.ownerChroma} ${hue.toFixed(1)} / ${dimmed ? 0.18 : 1})`;
}

/** The colours of the style sheet, as they are now. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    text: read("text"),
    quiet: read("quiet"),
    line: read("line"),
    surface: read("surface"),
    decode: read("decode"),
    prefill: read("prefill"),
    time: read("time"),
    shared: read("shared"),
    cached: read("cached"),
    free: read("free"),
    ownerLight: read("owner-light"),
    ownerChroma: read("owner-chroma"),
  };
}

/** A canvas ready to be drawn on in CSS pixels; its height is that of its style, or the one given. */
export function prepare(canvas, height = canvas.clientHeight) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [pixelsWide, pixelsHigh] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.clientHeight !== height) canvas.style.height = `${height}px`;
  if (canvas.width !== pixelsWide || canvas.height !== pixelsHigh) {
    canvas.width = pixelsWide;
    canvas.height = pixelsHigh;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
