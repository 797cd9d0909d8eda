// Interactive Block Kit elements. Each reads its value from `ctx.form` (so a redraw keeps what a person typed),
// writes it back in the shape of Slack's `state.values`, and calls `ctx.act` where Slack would send block_actions.
//
// ctx: {names, people, channels, form, status(block_id, action_id), act(block_id, element, selected),
//       suggest(block_id, element, typed), errors, scope}

import { h, icon, safeUrl } from "./dom.js";
import { plainText, textObject } from "./mrkdwn.js";
import { confirmDialog } from "./dialogs.js";
import { externalSelect } from "./external.js";

/** What people have entered into one message or view, by block and action. */
export class Form {
  #values = new Map();
  get(blockId, element) {
    const key = `${blockId}/${element.action_id}`;
    if (!this.#values.has(key)) this.#values.set(key, initial(element));
    return this.#values.get(key);
  }
  set(blockId, element, value) { this.#values.set(`${blockId}/${element.action_id}`, { type: element.type, ...value }); }

  /** Slack's state.values for the stateful elements among `blocks`. */
  state(blocks) {
    const values = {};
    for (const [blockId, element] of statefulElements(blocks)) (values[blockId] ??= {})[element.action_id] = this.get(blockId, element);
    return values;
  }
}

function initial(element) {
  const type = element.type;
  if (SINGLE[type]) return { type, selected_option: element.initial_option ?? null };
  if (MANY[type]) return { type, selected_options: element.initial_options ?? [] };
  if (PICKERS[type]) { const [key, from] = PICKERS[type]; return { type, [key]: element[from] ?? null }; }
  if (ID_LISTS[type]) { const [key, from] = ID_LISTS[type]; return { type, [key]: element[from] ?? (key.endsWith("s") ? [] : null) }; }
  return { type, value: element.initial_value ?? null };
}

const SINGLE = { static_select: true, radio_buttons: true, external_select: true };
const MANY = { multi_static_select: true, checkboxes: true, multi_external_select: true };
const PICKERS = {
  datepicker: ["selected_date", "initial_date", "date"],
  timepicker: ["selected_time", "initial_time", "time"],
  datetimepicker: ["selected_date_time", "initial_date_time", "datetime-local"],
};
const ID_LISTS = {
  users_select: ["selected_user", "initial_user"],
  channels_select: ["selected_channel", "initial_channel"],
  conversations_select: ["selected_conversation", "initial_conversation"],
  multi_users_select: ["selected_users", "initial_users"],
  multi_channels_select: ["selected_channels", "initial_channels"],
  multi_conversations_select: ["selected_conversations", "initial_conversations"],
};
const TEXT = { plain_text_input: "text", number_input: "text", email_text_input: "email", url_text_input: "url" };
const STATEFUL = new Set([SINGLE, MANY, PICKERS, ID_LISTS, TEXT].flatMap(Object.keys));

/** [block_id, element] of each element that holds a value, containers included. */
export function statefulElements(blocks) {
  return (blocks ?? []).flatMap((block) => {
    const inside = [block.element, block.accessory, ...(block.type === "actions" ? block.elements ?? [] : [])];
    return [...inside.filter((el) => el && STATEFUL.has(el.type)).map((el) => [block.block_id, el]), ...statefulElements(block.child_blocks)];
  });
}

/** The bare value that an interaction carries. */
export const selectedOf = (value) => Object.entries(value).find(([key]) => key !== "type")?.[1] ?? null;

/** Is this stored value empty, as "required" counts it? */
export function isEmpty(value) {
  const bare = selectedOf(value);
  return bare === null || bare === "" || (Array.isArray(bare) && bare.length === 0);
}

/** Draw one interactive element. `field`: {input: true, dispatch, labelledby, describedby, invalid} inside an input block. */
export function interactive(blockId, element, ctx, field = {}) {
  const draw = DRAW[element.type] ?? (PICKERS[element.type] ? picker : ID_LISTS[element.type] ? idSelect : TEXT[element.type] ? textInput : null);
  if (!draw) return h("span", { class: "unknown" }, `(${element.type} is not drawn here)`);
  const status = ctx.status(blockId, element.action_id);
  const node = draw(blockId, element, ctx, field, status);
  if (status?.state !== "failed") return node;
  return h("span", { class: "with-failure" }, node,
    h("span", { class: "failure", role: "alert", testid: `failed-${element.action_id}` }, icon("warning", 16), status.error));
}

const changed = (blockId, element, ctx, field, value) => {
  ctx.form.set(blockId, element, value);
  if (!field.input || field.dispatch) void ask(blockId, element, ctx, selectedOf(ctx.form.get(blockId, element)));
};

async function ask(blockId, element, ctx, selected) {
  if (element.confirm && !(await confirmDialog(element.confirm, ctx.names))) { ctx.redraw?.(); return; }
  ctx.act(blockId, element, selected);
}

function aria(element, field) {
  return {
    "aria-labelledby": field.labelledby, "aria-describedby": field.describedby, "aria-invalid": field.invalid ? "true" : null,
    "aria-required": field.required ? "true" : null, "aria-label": field.labelledby ? null : plainText(element.placeholder) || element.action_id,
    testid: `action-${element.action_id}`,
  };
}

const DRAW = { button, overflow, static_select: select, external_select: external, radio_buttons: radios, checkboxes, multi_static_select: checkboxes,
  multi_external_select: external, feedback_buttons: feedback, icon_button: iconButton, workflow_button: button };

function button(blockId, element, ctx, _field, status) {
  const pending = status?.state === "pending";
  const label = plainText(element.text);
  const url = element.url ? safeUrl(element.url) : null;
  const props = {
    class: `button ${element.style ?? ""} ${pending ? "pending" : ""}`, testid: `action-${element.action_id}`,
    "aria-label": element.accessibility_label, "aria-busy": pending ? "true" : null, title: url ? url.href : null,
  };
  const press = (event) => {
    if (pending || ctx.status(blockId, element.action_id)?.state === "pending") { event.preventDefault(); return; }
    void ask(blockId, element, ctx);
  };
  const inside = [h("span", { class: "label", dir: "auto" }, label), url ? icon("link", 14) : null, pending ? h("span", { class: "spinner", "aria-hidden": "true" }) : null];
  if (url) return h("a", { ...props, href: url.href, target: "_blank", rel: "noopener noreferrer", role: "button", onclick: press }, inside);
  return h("button", { ...props, type: "button", "aria-disabled": pending ? "true" : null, onclick: press }, inside);
}

function iconButton(blockId, element, ctx, field, status) {
  if (element.visible_to_user_ids && !element.visible_to_user_ids.includes(ctx.names.me)) return h("span");
  return h("button", { class: "icon-button", type: "button", testid: `action-${element.action_id}`, title: plainText(element.text),
    "aria-label": element.accessibility_label ?? plainText(element.text), "aria-busy": status?.state === "pending" ? "true" : null,
    onclick: () => ask(blockId, element, ctx) }, icon("trash", 16));
}

function feedback(blockId, element, ctx) {
  const one = (choice, turned) => h("button", { class: "icon-button", type: "button", testid: `action-${element.action_id}-${turned ? "negative" : "positive"}`,
    "aria-label": choice.accessibility_label ?? plainText(choice.text), title: plainText(choice.text),
    onclick: () => ask(blockId, element, ctx, choice.value) }, h("span", { class: turned ? "turned" : "" }, icon("up", 16)));
  return h("span", { class: "feedback" }, one(element.positive_button, false), one(element.negative_button, true));
}

function overflow(blockId, element, ctx, _field, status) {
  const menu = h("div", { class: "menu", role: "menu", hidden: true });
  const opener = h("button", { class: "icon-button", type: "button", testid: `action-${element.action_id}`, "aria-haspopup": "menu", "aria-expanded": "false",
    "aria-label": "More actions", "aria-busy": status?.state === "pending" ? "true" : null, onclick: () => toggle(menu.hidden) }, icon("more"));
  const toggle = (open) => {
    menu.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    if (!open) return;
    menu.classList.remove("flip", "above");
    const frame = root.closest(".scroll, .modal-body")?.getBoundingClientRect();
    const mine = menu.getBoundingClientRect();
    menu.classList.toggle("flip", Boolean(frame) && mine.right > frame.right - 6);
    menu.classList.toggle("above", Boolean(frame) && mine.bottom > frame.bottom - 6 && mine.height < opener.getBoundingClientRect().top - frame.top);
    menu.querySelector("[role=menuitem]")?.focus();
  };
  const root = h("span", { class: "overflow" }, opener, menu);
  (element.options ?? []).forEach((option, index) => {
    const pick = () => { toggle(false); opener.focus(); void ask(blockId, element, ctx, option); };
    const props = { role: "menuitem", tabindex: "-1", testid: `option-${option.value ?? index}`, onclick: pick };
    const url = option.url ? safeUrl(option.url) : null;
    menu.append(url ? h("a", { ...props, href: url.href, target: "_blank", rel: "noopener noreferrer" }, plainText(option.text)) : h("button", { ...props, type: "button" }, plainText(option.text)));
  });
  root.addEventListener("keydown", (event) => {
    const all = [...menu.children];
    const at = all.indexOf(document.activeElement);
    if (event.key === "Escape" && !menu.hidden) { event.stopPropagation(); event.preventDefault(); toggle(false); opener.focus(); }
    if (event.key === "ArrowDown" && !menu.hidden) { event.preventDefault(); all[(at + 1) % all.length].focus(); }
    if (event.key === "ArrowUp" && !menu.hidden) { event.preventDefault(); all[(at - 1 + all.length) % all.length].focus(); }
  });
  root.addEventListener("focusout", (event) => { if (!root.contains(event.relatedTarget)) { menu.hidden = true; opener.setAttribute("aria-expanded", "false"); } });
  return root;
}

const optionsOf = (element) => element.option_groups ? element.option_groups.flatMap((group) => group.options) : element.options ?? [];

function select(blockId, element, ctx, field, status) {
  const held = ctx.form.get(blockId, element).selected_option;
  const choices = (options) => options.map((option) => h("option", { value: option.value, selected: held?.value === option.value }, plainText(option.text)));
  const node = h("select", { ...aria(element, field), "aria-busy": status?.state === "pending" ? "true" : null, onchange: () => {
    const option = optionsOf(element).find((other) => other.value === node.value) ?? null;
    changed(blockId, element, ctx, field, { selected_option: option });
  } },
  h("option", { value: "", selected: !held, disabled: field.required && !!held }, plainText(element.placeholder) || "Select an item"),
  element.option_groups ? element.option_groups.map((group) => h("optgroup", { label: plainText(group.label) }, choices(group.options))) : choices(element.options ?? []));
  return h("span", { class: "select" }, node, icon("down", 16));
}

function external(blockId, element, ctx, field) {
  const many = element.type.startsWith("multi_");
  const key = many ? "selected_options" : "selected_option";
  const held = () => [ctx.form.get(blockId, element)[key] ?? []].flat();
  const most = element.max_selected_items ?? 100;
  const choose = (options) => changed(blockId, element, ctx, field, { [key]: many ? options.slice(0, most) : options[0] ?? null });
  return externalSelect(blockId, element, ctx, aria(element, field), many, held, choose);
}

function radios(blockId, element, ctx, field) {
  const held = ctx.form.get(blockId, element).selected_option;
  return choiceList("radio", blockId, element, ctx, field, (option) => held?.value === option.value, (option) => changed(blockId, element, ctx, field, { selected_option: option }));
}

function checkboxes(blockId, element, ctx, field) {
  const held = () => ctx.form.get(blockId, element).selected_options;
  return choiceList("checkbox", blockId, element, ctx, field, (option) => held().some((other) => other.value === option.value), (option, on) => {
    const rest = held().filter((other) => other.value !== option.value);
    changed(blockId, element, ctx, field, { selected_options: on ? [...rest, option] : rest });
  });
}

function choiceList(type, blockId, element, ctx, field, isOn, pick) {
  const name = `${ctx.scope}-${blockId}-${element.action_id}`;
  const boxed = element.type.startsWith("multi_");
  return h("div", { ...aria(element, field), role: type === "radio" ? "radiogroup" : "group", class: boxed ? "choices boxed" : "choices" }, optionsOf(element).map((option) =>
    h("label", { class: "choice" },
      h("input", { type, name, value: option.value, checked: isOn(option), testid: `option-${option.value}`, onchange: (event) => pick(option, event.target.checked) }),
      h("span", null, textObject(option.text, ctx.names), option.description ? h("small", null, textObject(option.description, ctx.names)) : null))));
}

function picker(blockId, element, ctx, field) {
  const [key, , type] = PICKERS[element.type];
  const held = ctx.form.get(blockId, element)[key];
  const shown = type === "datetime-local" && held ? localStamp(held) : held ?? "";
  const node = h("input", { ...aria(element, field), class: "field short", type, value: shown, onchange: () => {
    const value = node.value || null;
    changed(blockId, element, ctx, field, { [key]: value && type === "datetime-local" ? Math.floor(new Date(value).getTime() / 1000) : value });
  } });
  return node;
}

function localStamp(epochSeconds) {
  const date = new Date(epochSeconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function idSelect(blockId, element, ctx, field) {
  const [key] = ID_LISTS[element.type];
  const people = element.type.includes("users") ? ctx.people.filter((person) => person.kind !== "deactivated") : [];
  const choices = people.length ? people.map((person) => ({ value: person.id, text: { type: "plain_text", text: person.real_name || person.name, emoji: false } }))
    : ctx.channels.filter((channel) => channel.kind === "channel" || element.type.includes("conversations")).map((channel) => ({ value: channel.id, text: { type: "plain_text", text: `#${channel.name}`, emoji: false } }));
  const options = { ...element, options: choices, option_groups: undefined };
  const value = ctx.form.get(blockId, element)[key];
  if (key.endsWith("s")) {
    return choiceList("checkbox", blockId, options, ctx, field, (option) => value.includes(option.value), (option, on) => {
      const rest = ctx.form.get(blockId, element)[key].filter((id) => id !== option.value);
      changed(blockId, element, ctx, field, { [key]: on ? [...rest, option.value] : rest });
    });
  }
  const node = h("select", { ...aria(element, field), onchange: () => changed(blockId, element, ctx, field, { [key]: node.value || null }) },
    h("option", { value: "", selected: !value }, plainText(element.placeholder) || "Select"),
    choices.map((option) => h("option", { value: option.value, selected: value === option.value }, option.text.text)));
  return h("span", { class: "select" }, node, icon("down", 16));
}

function textInput(blockId, element, ctx, field) {
  const many = element.type === "plain_text_input" && element.multiline;
  const held = ctx.form.get(blockId, element).value ?? "";
  const triggers = element.dispatch_action_config?.trigger_actions_on ?? ["on_enter_pressed"];
  const node = h(many ? "textarea" : "input", { ...aria(element, field), class: "field", type: many ? null : TEXT[element.type], rows: many ? 5 : null, dir: "auto",
    inputmode: element.type === "number_input" ? (element.is_decimal_allowed ? "decimal" : "numeric") : null, value: held, autocomplete: "off",
    placeholder: plainText(element.placeholder) || null, maxlength: element.max_length ?? (element.type === "plain_text_input" ? 3000 : null),
    "data-autofocus": element.focus_on_load ? "1" : null,
    oninput: () => {
      ctx.form.set(blockId, element, { value: node.value === "" ? null : node.value });
      if (field.dispatch && triggers.includes("on_character_entered")) ctx.act(blockId, element, node.value);
    },
    onkeydown: (event) => {
      if (event.key === "Enter" && !many && field.dispatch && triggers.includes("on_enter_pressed")) { event.preventDefault(); ctx.act(blockId, element, node.value); }
    } });
  return node;
}

/** Slack's own checks before a view is sent. Returns {block_id: words} for the input blocks that fail. */
export function checkInputs(blocks, form) {
  const errors = {};
  for (const block of blocks ?? []) {
    if (block.type !== "input") { Object.assign(errors, checkInputs(block.child_blocks, form)); continue; }
    if (!block.element || !STATEFUL.has(block.element.type)) continue;
    const value = form.get(block.block_id, block.element);
    const words = isEmpty(value) ? (block.optional ? null : REQUIRED) : checkText(block.element, String(selectedOf(value)));
    if (words) errors[block.block_id] = words;
  }
  return errors;
}

const REQUIRED = "Please complete this required field.";

function checkText(element, text) {
  if (element.type === "email_text_input") return /^[^\s@]+@[^\s@]+\.[^\s@]+$/.test(text) ? null : "Please enter a valid email address.";
  if (element.type === "url_text_input") return /^https?:\/\/\S+$/.test(text) ? null : "Please enter a valid URL.";
  if (element.type === "number_input") {
    const number = Number(text);
    if (text.trim() === "" || !Number.isFinite(number)) return "Please enter a number.";
    if (!element.is_decimal_allowed && !Number.isInteger(number)) return "Please enter a whole number.";
    if (element.min_value !== undefined && number < Number(element.min_value)) return `Please enter a number that is at least ${element.min_value}.`;
    if (element.max_value !== undefined && number > Number(element.max_value)) return `Please enter a number that is at most ${element.max_value}.`;
    return null;
  }
  if (element.type !== "plain_text_input") return null;
  if (element.min_length && text.length < element.min_length) return `Please enter at least ${element.min_length} characters.`;
  return null;
}
