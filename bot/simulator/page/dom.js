// Builds and reconciles elements. Text always goes in as text nodes: nothing here can parse markup,
// so what people, tools or models wrote can never become an element.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element. Props: class, dataset, aria-…, on… (listeners), and attributes; null and false are left out. */
export function h(tag, props, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) setProp(el, name, value);
  append(el, children);
  return el;
}

function setProp(el, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "class") el.className = value;
  else if (name === "testid") el.dataset.testid = value;
  else if (name === "hue") el.style.setProperty("--hue", value);
  else if (name.startsWith("on") && typeof value === "function") el.addEventListener(name.slice(2), value);
  else if (name === "value" || name === "checked" || name === "selected") el[name] = value;
  else el.setAttribute(name, value === true ? "" : String(value));
}

function append(el, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** A line icon drawn from path data, hidden from screen readers (the control beside it carries the label). */
export function icon(name, size = 18) {
  const svg = document.createElementNS(SVG, "svg");
  const attributes = { viewBox: "0 0 24 24", width: size, height: size, fill: "none", stroke: "currentColor",
    "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true", class: "icon" };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

const ICONS = {
  hash: "M9 4 7 20M17 4l-2 16M4 9h17M3 15h17",
  back: "M15 5l-7 7 7 7",
  close: "M6 6l12 12M18 6 6 18",
  send: "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4",
  thread: "M5 5h14v10H11l-4 4v-4H5z",
  home: "M4 11l8-7 8 7v9h-5v-6H9v6H4z",
  world: "M12 3a9 9 0 100 18 9 9 0 000-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  warning: "M12 4 2.5 20h19zM12 10v4.5M12 17.3v.2",
  eye: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 9.5a2.5 2.5 0 100 5 2.5 2.5 0 000-5z",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.2v.1",
  down: "M6 9l6 6 6-6",
  check: "M5 12.5l4.5 4.5L19 7.5",
  info: "M12 3a9 9 0 100 18 9 9 0 000-18zM12 11v5.5M12 7.6v.1",
  people: "M9 11a3.5 3.5 0 100-7 3.5 3.5 0 000 7zM3 20c0-4 2.5-6 6-6s6 2 6 6M16 5a3 3 0 010 6M18 14.5c2 .7 3 2.5 3 5.5",
  link: "M10 14a4 4 0 006 0l3-3a4 4 0 00-6-6l-1 1M14 10a4 4 0 00-6 0l-3 3a4 4 0 006 6l1-1",
  calm: "M4 15c2.5 0 2.5-3 5-3s2.5 3 5 3 2.5-3 5-3",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  up: "M7 11v9H4v-9zM7 11l4-7c2 0 2.5 1.5 2 3.5L12.5 10H19l-1.5 10H7",
};

// While a person presses something, nothing is redrawn: a click whose release met another element than its press
// would be no click at all.
const PRESSABLE = "button, a, summary, [role=button], [role=menuitem], [role=option]";
let pressing = false;
const putOff = new Set();

/** Whether to put off this drawing; it is then done right after the press. Give the same function each time. */
export function putsOff(draw) { if (pressing) putOff.add(draw); return pressing; }

function released() {
  pressing = false;
  const draws = [...putOff];
  putOff.clear();
  for (const draw of draws) draw();
}

addEventListener("pointerdown", (event) => { pressing = event.button === 0 && Boolean(event.target.closest?.(PRESSABLE)); }, true);
addEventListener("pointermove", (event) => { if (pressing && !event.buttons) released(); }, true);
addEventListener("pointerup", () => setTimeout(released, 0), true); // its click comes before that
for (const end of ["click", "pointercancel", "blur"]) addEventListener(end, released);

/**
 * Make the children of `container` match `items`, touching only those whose `sig` changed.
 * Items: {key, sig, build}. Focus and caret inside a rebuilt child move to its successor's element with the same hook.
 */
export function reconcile(container, items) {
  const old = new Map();
  for (const child of container.children) if (child.__key !== undefined) old.set(child.__key, child);
  let cursor = container.firstElementChild;
  for (const { key, sig, build } of items) {
    let node = old.get(key);
    old.delete(key);
    if (!node || node.__sig !== sig) {
      const fresh = build();
      fresh.__key = key;
      fresh.__sig = sig;
      if (node) {
        const held = heldFocus(node);
        if (cursor === node) cursor = fresh;
        node.replaceWith(fresh);
        giveFocus(fresh, held);
      }
      node = fresh;
    }
    if (cursor === node) cursor = cursor.nextElementSibling;
    else container.insertBefore(node, cursor);
  }
  for (const gone of old.values()) gone.remove();
}

function heldFocus(node) {
  const active = document.activeElement;
  if (!active || !node.contains(active)) return null;
  const caret = typeof active.selectionStart === "number" ? [active.selectionStart, active.selectionEnd] : null;
  // what is typed into a search is kept nowhere else
  const typed = active.matches("input[role=combobox]") ? active.value : null;
  return { self: active === node, testid: active.closest("[data-testid]")?.dataset.testid, caret, typed };
}

function giveFocus(fresh, held) {
  if (!held) return;
  const same = held.testid ? fresh.querySelector(`[data-testid="${CSS.escape(held.testid)}"]`) : null;
  const target = held.self || !same ? fresh : same;
  if (target === fresh && fresh.tabIndex < 0) fresh.tabIndex = -1;
  if (held.typed && target === same) target.value = held.typed;
  target.focus({ preventScroll: true });
  if (held.caret && typeof target.setSelectionRange === "function") {
    try { target.setSelectionRange(...held.caret); } catch (error) { if (error.name !== "InvalidStateError") throw error; }
  }
}

/** Move focus with the arrow keys among the elements that match `selector` inside `container`. */
export function arrowKeys(container, selector, axis = "vertical") {
  const [before, after] = axis === "vertical" ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  container.addEventListener("keydown", (event) => {
    if (![before, after, "Home", "End"].includes(event.key) || !event.target.matches(selector)) return;
    const all = [...container.querySelectorAll(selector)].filter((el) => el.offsetParent !== null);
    const at = all.indexOf(event.target);
    const next = { [before]: at - 1, [after]: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (next < 0 || next >= all.length) return;
    event.preventDefault();
    all[next].focus();
  });
}

/** An address that may be followed, or null: only http, https, mailto and tel ever become links. */
export function safeUrl(text) {
  let url;
  try { url = new URL(text, location.origin); } catch { return null; }
  return ["http:", "https:", "mailto:", "tel:"].includes(url.protocol) ? url : null;
}

/** A link. Addresses of this page's own messages open in place; all others open a new tab without a referrer. */
export function link(href, ...label) {
  const url = safeUrl(href);
  if (!url) return h("span", { class: "dead-link", title: "This address cannot be opened" }, label.length ? label : href);
  const own = url.origin === location.origin && (url.pathname.startsWith("/archives/") || url.hash.startsWith("#/"));
  const props = own ? { href: url.href } : { href: url.href, target: "_blank", rel: "noopener noreferrer" };
  return h("a", { ...props, title: url.href }, label.length ? label : href);
}
