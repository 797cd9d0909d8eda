// "The world": controls of whatever surrounds the workspace. Only what /panel/state describes is drawn; this
// page knows nothing of what the controls mean.

import { h, icon, putsOff, reconcile } from "./dom.js";
import { post } from "./live.js";
import { clockTime } from "./clock.js";

const EVERY_MS = 1000;

export class Panel {
  #timer = null; #busy = new Set(); #state = null; #failed = false; #turn = 0;

  constructor(app, root) {
    this.app = app;
    this.root = root;
    this.groups = root.querySelector("#panel-groups");
    this.log = root.querySelector("#panel-log");
    this.note = root.querySelector("#panel-note");
    root.querySelector("[data-testid=panel-close]").addEventListener("click", () => app.showPanel(false));
  }

  /** Poll while the panel is shown. What it said when it was open before is no lever to pull: it may be another's now. */
  run(open) {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.groups.inert = true;
    if (open) void this.#poll();
  }

  async #poll() {
    const turn = (this.#turn += 1);
    let state = null;
    try {
      const response = await fetch("/panel/state", { headers: { accept: "application/json" } });
      if (!response.ok) throw new Error(`panel ${response.status}`);
      state = await response.json();
    } catch { state = null; }
    if (turn !== this.#turn) return; // a later question counts
    this.#failed = state === null;
    if (state) this.#state = state;
    this.groups.inert = false;
    this.render();
    clearTimeout(this.#timer);
    if (this.app.panelOpen) this.#timer = setTimeout(() => this.#poll(), EVERY_MS);
  }

  #redraw = () => this.render();

  render() {
    if (putsOff(this.#redraw)) return;
    this.note.hidden = !this.#failed;
    this.note.textContent = this.#state ? "The world does not answer; showing what it last said." : "The world does not answer yet.";
    const groups = this.#state?.groups ?? [];
    reconcile(this.groups, groups.map((group, at) => ({
      key: `${at}-${group.title}`,
      sig: JSON.stringify(group.controls.map(({ value, ...fixed }) => (fixed.kind === "text" || fixed.kind === "number" ? fixed : { ...fixed, value }))) + [...this.#busy].join(),
      build: () => h("section", { class: "panel-group" }, group.title ? h("h3", null, group.title) : null, group.controls.map((control) => this.#draw(control))),
    })));
    this.#freshen(groups);
    const log = this.#state?.log ?? [];
    const newest = log.slice(-30).reverse();
    reconcile(this.log, newest.map((line, at) => ({ key: `${line.at}-${line.text}-${newest.slice(at).filter((other) => other.at === line.at && other.text === line.text).length}`, sig: "", build: () => h("li", null, h("time", null, stamp(line.at)), h("span", { dir: "auto" }, line.text)) })));
    this.root.querySelector("#panel-log-box").hidden = log.length === 0;
  }

  /** Text and number fields take new values without being rebuilt, and never while a person types in them. */
  #freshen(groups) {
    for (const control of groups.flatMap((group) => group.controls)) {
      const field = this.groups.querySelector(`[data-field="${CSS.escape(control.id)}"]`);
      if (field && field !== document.activeElement && !field.dataset.dirty) field.value = control.value ?? "";
    }
  }

  #draw(control) {
    const busy = this.#busy.has(control.id);
    const off = control.disabled;
    const hint = control.hint ? h("small", { class: "hint", id: `hint-${control.id}` }, control.hint) : null;
    const described = control.hint ? `hint-${control.id}` : null;
    const row = (...content) => h("div", { class: `control kind-${control.kind} ${control.disabled ? "off" : ""}` }, content, hint);
    switch (control.kind) {
      case "toggle": {
        const on = control.value === true || control.value === "true";
        return row(h("button", { type: "button", role: "switch", class: "switch", "aria-checked": String(on), "aria-describedby": described, testid: `control-${control.id}`, disabled: off, onclick: () => this.#set(control, !on) },
          h("span", { class: "control-label" }, control.label), h("span", { class: control.danger ? "track danger" : "track", "aria-hidden": "true" }, h("i"))));
      }
      case "select": {
        const node = h("select", { testid: `control-${control.id}`, "aria-describedby": described, disabled: off, onchange: () => this.#set(control, node.value) },
          (control.options ?? []).map((option) => h("option", { value: option.value, selected: String(option.value) === String(control.value) }, option.label)));
        return row(h("label", null, h("span", { class: "control-label" }, control.label), h("span", { class: "select" }, node, icon("down", 16))));
      }
      case "number":
      case "text": {
        const node = h("input", { class: "field", type: control.kind === "number" ? "number" : "text", step: control.kind === "number" ? "any" : null, value: control.value ?? "", "data-field": control.id, testid: `control-${control.id}`, "aria-describedby": described, disabled: off, dir: "auto",
          oninput: () => { node.dataset.dirty = "1"; },
          onchange: () => { delete node.dataset.dirty; void this.#set(control, control.kind === "number" ? Number(node.value) : node.value); },
          onkeydown: (event) => { if (event.key === "Enter") node.blur(); } });
        return row(h("label", null, h("span", { class: "control-label" }, control.label), node));
      }
      default:
        return row(h("button", { type: "button", class: `button wide ${control.danger ? "danger" : ""} ${busy ? "pending" : ""}`, testid: `control-${control.id}`, "aria-describedby": described, disabled: control.disabled, "aria-busy": busy ? "true" : null, onclick: () => this.#set(control, control.value ?? true) }, h("span", { class: "label" }, control.label), busy ? h("span", { class: "spinner", "aria-hidden": "true" }) : null));
    }
  }

  async #set(control, value) {
    if (this.#busy.has(control.id)) return;
    this.#busy.add(control.id);
    this.render();
    const answer = await post("/panel/set", { id: control.id, value });
    this.#busy.delete(control.id);
    if (!answer.ok) this.app.toast(answer.text || answer.error || "That did not work.", "bad");
    else if (answer.text) this.app.toast(answer.text);
    await this.#poll();
  }
}

function stamp(at) {
  const date = typeof at === "number" ? new Date(at * 1000) : new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : clockTime(date);
}
