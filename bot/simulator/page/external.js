// External selects: what a person types goes to the app, and what it answers can be chosen. A combobox with a list.

import { h, icon } from "./dom.js";
import { plainText } from "./mrkdwn.js";

const PAUSE_MS = 250, MIN_QUERY = 3;

/** Draw one. `held()` returns the options chosen so far, `choose(options)` keeps others; `many`: more than one at a time. */
export function externalSelect(blockId, element, ctx, props, many, held, choose) {
  const least = element.min_query_length ?? MIN_QUERY;
  const listId = `${ctx.scope}-${blockId}-${element.action_id}-list`.replace(/[^\w-]/g, "_");
  let timer = null, asked = 0, options = [], active = -1;
  const chips = h("span", { class: "chips" });
  const list = h("div", { class: "menu options", role: "listbox", id: listId, hidden: true });
  const box = h("input", { ...props, class: "field", type: "text", role: "combobox", autocomplete: "off", dir: "auto", "aria-expanded": "false", "aria-controls": listId, "aria-autocomplete": "list",
    placeholder: plainText(element.placeholder) || (least ? "Type to search" : "Search"), oninput: () => later(), onfocus: () => { if (least === 0 || box.value) later(); },
    onblur: () => setTimeout(() => { if (!root.contains(document.activeElement)) close(); }, 0), onkeydown: (event) => key(event) });
  const root = h("span", { class: "external-choice" }, chips, box, list);

  const say = (words) => { options = []; show(h("p", { class: "hint" }, words)); };
  const show = (...content) => { list.replaceChildren(...content); list.hidden = false; box.setAttribute("aria-expanded", "true"); };
  const close = () => { list.hidden = true; active = -1; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };

  function later() {
    clearTimeout(timer);
    if ([...box.value].length < least) { say(`Type ${least === 1 ? "a character" : `at least ${least} characters`} to search.`); return; }
    timer = setTimeout(() => void load(), PAUSE_MS);
  }

  async function load() {
    const turn = (asked += 1);
    say("Loading…");
    const answer = await ctx.suggest(blockId, element, box.value);
    if (turn !== asked) return; // a later answer counts
    if (!answer.ok) { say(answer.text || "The options could not be loaded."); return; }
    const groups = answer.option_groups ?? [{ options: answer.options ?? [] }];
    options = groups.flatMap((group) => group.options ?? []);
    if (!options.length) { say("Nothing matches."); return; }
    let at = 0;
    show(...groups.flatMap((group) => [group.label ? h("p", { class: "hint" }, plainText(group.label)) : null, ...(group.options ?? []).map((option) => row(option, at++))]).filter(Boolean));
  }

  const row = (option, at) => h("button", { type: "button", role: "option", id: `${listId}-${at}`, tabindex: "-1", "aria-selected": String(held().some((other) => other.value === option.value)), testid: `option-${option.value}`,
    onclick: () => pick(option) }, plainText(option.text), option.description ? h("small", null, plainText(option.description)) : null);

  function pick(option) {
    const rest = many ? held().filter((other) => other.value !== option.value) : [];
    choose([...rest, option]);
    box.value = "";
    close();
    draw();
    box.focus();
  }

  function key(event) {
    const rows = [...list.querySelectorAll("[role=option]")];
    if (event.key === "Escape" && !list.hidden) { event.preventDefault(); event.stopPropagation(); close(); }
    if (event.key === "Backspace" && !box.value && held().length) { choose(held().slice(0, -1)); draw(); }
    if (event.key === "Enter" && !list.hidden) { event.preventDefault(); if (options[active]) pick(options[active]); }
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && rows.length && !list.hidden) {
      event.preventDefault();
      active = (active + (event.key === "ArrowDown" ? 1 : -1) + rows.length) % rows.length;
      rows.forEach((node, at) => node.classList.toggle("active", at === active));
      box.setAttribute("aria-activedescendant", rows[active].id);
      rows[active].scrollIntoView({ block: "nearest" });
    }
  }

  function draw() {
    chips.replaceChildren(...held().map((option) => h("span", { class: "chip", testid: `chosen-${option.value}` }, plainText(option.text),
      h("button", { type: "button", "aria-label": `Remove ${plainText(option.text)}`, onclick: () => { choose(held().filter((other) => other.value !== option.value)); draw(); box.focus(); } }, icon("close", 12)))));
  }

  draw();
  return root;
}
