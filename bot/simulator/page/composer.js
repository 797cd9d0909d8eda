// Where messages are written. Enter sends, Shift+Enter makes a line; @ completes people, / completes commands.

import { h, icon } from "./dom.js";
import { avatar } from "./people.js";
import { post } from "./live.js";

export class Composer {
  #drafts = new Map(); #target = null; #choices = []; #active = 0; #sending = false;

  /** `kind` is "composer" or "thread-composer": the stem of its hooks. */
  constructor(app, kind, root) {
    this.app = app;
    this.kind = kind;
    this.list = h("div", { class: "completion", role: "listbox", id: `${kind}-list`, hidden: true, testid: `${kind}-completion`, "aria-label": "Suggestions" });
    this.box = h("textarea", { rows: 1, testid: kind, dir: "auto", role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": `${kind}-list`, autocomplete: "off", spellcheck: "true",
      oninput: () => this.#typed(), onkeydown: (event) => this.#key(event), onblur: () => setTimeout(() => this.#offer([]), 120), onclick: () => this.#complete() });
    this.button = h("button", { type: "button", class: "send", testid: kind === "composer" ? "send" : "thread-send", "aria-label": "Send", title: "Send (Enter)", onclick: () => this.send() }, icon("send", 18));
    this.problem = h("div", { class: "problem", role: "alert", testid: `${kind}-error`, hidden: true });
    root.replaceChildren(this.list, this.problem, h("div", { class: "write" }, this.box, this.button), h("div", { class: "keys", "aria-hidden": "true" }, h("span", null, "Enter to send, Shift + Enter for a new line")));
  }

  /** Point at a channel (and thread); the draft of each place is kept. */
  aim({ channel, thread = null, label }) {
    const key = `${this.app.store.me}/${channel}/${thread ?? ""}`;
    this.box.placeholder = label;
    this.box.setAttribute("aria-label", label);
    if (this.#target?.key === key) return;
    if (this.#target) this.#drafts.set(this.#target.key, this.box.value);
    this.#target = { key, channel, thread };
    this.box.value = this.#drafts.get(key) ?? "";
    this.#say(null);
    this.#offer([]);
    this.#grow();
  }

  focus() { this.box.focus(); }

  #grow() {
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, 220)}px`;
    this.button.classList.toggle("ready", this.box.value.trim() !== "");
  }

  #typed() { this.#say(null); this.#grow(); this.#complete(); }
  #say(text) { this.problem.hidden = !text; this.problem.replaceChildren(...(text ? [icon("warning", 16), document.createTextNode(text)] : [])); }

  #complete() {
    const { store } = this.app;
    const before = this.box.value.slice(0, this.box.selectionStart);
    const command = /^\/(\S*)$/.exec(before);
    if (command) {
      const all = [...new Map((store.bot.commands ?? []).map((one) => [one.command, one])).values()];
      this.#offer(all.filter((one) => one.command.startsWith(`/${command[1]}`)).map((one) => ({ from: 0, insert: `${one.command} `, draw: () => [h("strong", null, one.command), " ", h("span", { class: "usage" }, one.usage_hint ?? ""), h("small", null, one.description ?? "")], id: one.command.slice(1) })));
      return;
    }
    const at = /(?:^|[\s(])@([^\s@]*(?: [^\s@]*)?)$/.exec(before);
    if (!at) { this.#offer([]); return; }
    const wanted = at[1].toLowerCase();
    const members = new Set(store.channel(this.#target?.channel)?.members ?? []);
    const bot = store.people.some((person) => person.id === store.bot.user_id) ? [] : [{ id: store.bot.user_id, name: store.bot.name, real_name: store.bot.name, kind: "bot" }];
    const found = [...bot, ...store.people].filter((person) => person.id && person.id !== store.me && person.kind !== "deactivated"
      && (person.name.toLowerCase().startsWith(wanted) || (person.real_name ?? "").toLowerCase().split(" ").some((_, i, words) => words.slice(i).join(" ").startsWith(wanted))));
    const rank = (person) => (person.id === store.bot.user_id ? 0 : members.has(person.id) ? 1 : 2);
    found.sort((a, b) => rank(a) - rank(b));
    this.#offer(found.slice(0, 8).map((person) => ({ from: before.length - at[1].length - 1, insert: `@${person.real_name || person.name} `, id: person.id,
      draw: () => [avatar(person, "small"), h("bdi", null, h("strong", null, person.real_name || person.name)), h("small", null, [person.title, rank(person) === 2 ? "not in this channel" : ""].filter(Boolean).join(", "))] })));
  }

  #offer(choices) {
    this.#choices = choices;
    this.#active = 0;
    this.list.hidden = choices.length === 0;
    this.box.setAttribute("aria-expanded", String(choices.length > 0));
    this.list.replaceChildren(...choices.map((choice, index) => h("div", { class: "suggestion", role: "option", id: `${this.kind}-option-${index}`, testid: `suggest-${choice.id}`,
      onpointerdown: (event) => { event.preventDefault(); this.#take(index); } }, choice.draw())));
    this.#mark();
  }

  #mark() {
    [...this.list.children].forEach((node, index) => node.setAttribute("aria-selected", String(index === this.#active)));
    this.list.children[this.#active]?.scrollIntoView({ block: "nearest" });
    if (this.#choices.length) this.box.setAttribute("aria-activedescendant", `${this.kind}-option-${this.#active}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  #take(index) {
    const choice = this.#choices[index];
    const end = this.box.selectionStart;
    this.box.setRangeText(choice.insert, choice.from, end, "end");
    this.#offer([]);
    this.#grow();
    this.box.focus();
  }

  #key(event) {
    if (event.isComposing) return;
    if (this.#choices.length) {
      const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (move) { event.preventDefault(); this.#active = (this.#active + move + this.#choices.length) % this.#choices.length; this.#mark(); return; }
      if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); this.#offer([]); return; }
      const exact = this.box.value.trim() === this.#choices[this.#active].insert.trim();
      if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey && !exact)) { event.preventDefault(); this.#take(this.#active); return; }
    }
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); void this.send(); }
    if (event.key === "ArrowUp" && this.box.value === "") { event.preventDefault(); this.app.focusLastMessage(this.kind === "thread-composer"); }
  }

  /** Send what stands in the box: a message, or (outside threads) a slash command. The text comes back if it is refused. */
  async send() {
    const text = this.box.value;
    if (!text.trim() || this.#sending || !this.#target) return;
    const { store } = this.app;
    const { channel, thread, key } = this.#target;
    const command = !thread && /^(\/\S+)\s*([\s\S]*)$/.exec(text);
    this.#sending = true;
    this.#offer([]);
    this.box.value = "";
    this.#grow();
    let answer;
    if (command) {
      const place = `command:${channel}:${Date.now()}`;
      answer = await post("/page/command", { as: store.me, channel, command: command[1], text: command[2].trim() });
      if (answer.ok && answer.interaction_id) { this.app.watchCommand(answer.interaction_id, place, channel, command[1]); }
    } else answer = await post("/page/post", { as: store.me, channel, text, ...(thread ? { thread_ts: thread } : {}) });
    this.#sending = false;
    if (answer.ok) { this.app.sent(this.kind, answer.ts); return; }
    if (this.#target.key === key) {
      if (!this.box.value) this.box.value = text;
      this.#grow();
      this.#say(answer.text || answer.error || "This could not be sent.");
      this.box.focus();
    } else this.#drafts.set(key, text);
  }
}
