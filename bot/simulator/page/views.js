// Modals (a stack of up to three, the top one shown) and the Home tab.

import { h, icon, reconcile } from "./dom.js";
import { drawBlock } from "./blocks.js";
import { checkInputs } from "./inputs.js";
import { plainText } from "./mrkdwn.js";
import { post } from "./live.js";

const blockItems = (view, app, ctx, errors, owner) => (view.blocks ?? []).map((block, index) => ({
  key: block.block_id ?? `at-${index}`,
  sig: `${JSON.stringify(block)}|${errors[block.block_id] ?? ""}|${app.clicks(owner)}|${app.store.version}`,
  build: () => drawBlock(block, ctx),
}));

export class Modals {
  #opener = null; #shown = null;

  constructor(app) {
    this.app = app;
    this.blocks = h("div", { class: "blocks modal-blocks" });
    this.head = h("header");
    this.foot = h("footer");
    this.problem = h("div", { class: "modal-problem" });
    this.dialog = h("dialog", { class: "modal", testid: "modal", "aria-labelledby": "modal-title",
      oncancel: (event) => { event.preventDefault(); void this.close(false); },
      onkeydown: (event) => { if (event.key === "Escape") event.stopPropagation(); } },
    h("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); void this.submit(); } }, this.head, h("div", { class: "modal-body", tabindex: "-1" }, this.problem, this.blocks), this.foot));
    document.body.append(this.dialog);
  }

  get top() { return this.app.store.views.at(-1) ?? null; }

  render() {
    const view = this.top;
    if (!view) {
      if (this.dialog.open) { this.dialog.close(); if (this.#opener?.isConnected) this.#opener.focus(); else this.app.focusPane(); }
      this.#shown = null;
      return;
    }
    const { store } = this.app;
    const owner = `view:${view.id}`;
    const depth = store.views.length;
    const status = store.status(`${owner}/submit`);
    const ctx = this.app.blockContext({ kind: "view", id: view.id, blocks: view.blocks });
    ctx.errors = store.viewErrors(view.id);
    reconcile(this.head, [{ key: "head", sig: `${view.id}|${depth}|${JSON.stringify(view.title)}`, build: () => h("div", { class: "modal-head" },
      depth > 1 ? h("button", { type: "button", class: "icon-button", testid: "modal-back", "aria-label": "Back to the previous view", onclick: () => this.close(false) }, icon("back")) : h("span", { class: "avatar small bot", "aria-hidden": "true" }, h("i", { class: "mark" })),
      h("h2", { id: "modal-title", dir: "auto" }, plainText(view.title)), depth > 1 ? h("small", { class: "depth" }, `${depth} of 3`) : null,
      h("button", { type: "button", class: "icon-button", testid: "modal-x", "aria-label": "Close", onclick: () => this.close(true) }, icon("close"))) }]);
    const problem = status?.state === "failed" ? status.error : ctx.errors[""];
    reconcile(this.problem, problem ? [{ key: "p", sig: problem, build: () => h("div", { class: "failure", role: "alert", testid: "modal-failed" }, icon("warning", 16), problem) }] : []);
    reconcile(this.blocks, blockItems(view, this.app, ctx, ctx.errors, owner));
    const pending = status?.state === "pending";
    const submit = plainText(view.submit);
    reconcile(this.foot, [{ key: "foot", sig: `${view.id}|${submit}|${plainText(view.close)}|${pending}`, build: () => h("div", { class: "modal-foot" },
      h("button", { type: "button", class: "button", testid: "modal-close", onclick: () => this.close(false) }, plainText(view.close) || (submit ? "Cancel" : "Close")),
      submit ? h("button", { type: "submit", class: `button primary solid ${pending ? "pending" : ""}`, testid: "modal-submit", "aria-busy": pending ? "true" : null, "aria-disabled": pending ? "true" : null }, h("span", { class: "label" }, submit), pending ? h("span", { class: "spinner", "aria-hidden": "true" }) : null) : null) }]);
    this.dialog.dataset.viewId = view.id;
    if (!this.dialog.open) { this.#opener = document.activeElement; this.dialog.showModal(); }
    if (this.#shown !== view.id) {
      this.#shown = view.id;
      this.dialog.querySelector(".modal-body").scrollTop = 0;
      const first = this.dialog.querySelector("[data-autofocus]") ?? this.blocks.querySelector("input, textarea, select") ?? this.dialog.querySelector("[data-testid=modal-submit]") ?? this.dialog.querySelector("[data-testid=modal-close]");
      first?.focus({ preventScroll: true });
    }
  }

  async submit() {
    const view = this.top;
    if (!view) return;
    const { store } = this.app;
    const place = `view:${view.id}/submit`;
    if (store.status(place)?.state === "pending") return;
    const form = store.form(`view:${view.id}`);
    const errors = checkInputs(view.blocks, form);
    store.setViewErrors(view.id, errors);
    if (Object.keys(errors).length) { this.#pointAtError(); return; }
    store.begin(place);
    const answer = await post("/page/view_submit", { as: store.me, view_id: view.id, values: form.state(view.blocks) });
    if (answer.errors) { store.settle(place); store.apply({ event: "view_errors", view_id: view.id, errors: answer.errors }); return; }
    if (!answer.ok) { store.fail(place, answer.text || answer.error); return; }
    if (answer.interaction_id) store.bind(answer.interaction_id, place);
  }

  pointAtErrors(viewId) { if (this.top?.id === viewId) { this.app.store.settle(`view:${viewId}/submit`); this.#pointAtError(); } }

  #pointAtError() {
    this.render();
    const bad = this.dialog.querySelector("[aria-invalid=true]");
    const target = bad?.matches("input, textarea, select") ? bad : bad?.querySelector("input, textarea, select");
    target?.focus();
    target?.closest(".block")?.scrollIntoView({ block: "nearest" });
  }

  /** Close the top view, or the whole stack. */
  async close(all) {
    const view = this.top;
    if (!view) return;
    const { store } = this.app;
    const everything = all && store.views.length > 1;
    const answer = await post("/page/view_close", { as: store.me, view_id: everything ? store.views[0].id : view.id, ...(everything ? { all: true } : {}) });
    store.apply({ event: "view_closed", view_id: everything ? store.views[0]?.id : view.id });
    if (!answer.ok) this.app.toast(answer.text || answer.error, "bad");
  }
}

/** Draw the bot's Home tab into `container`. */
export function drawHome(container, app) {
  const { store } = app;
  const view = store.home;
  if (!view?.blocks?.length) {
    reconcile(container, [{ key: "empty", sig: `${store.bot.connected}|${store.bot.name}`, build: () => h("div", { class: "empty" }, icon("home", 34), h("p", null, store.bot.connected ? `${store.bot.name} is preparing this page.` : `${store.bot.name || "The app"} is offline. Its Home appears when it is back.`)) }]);
    return;
  }
  const ctx = app.blockContext({ kind: "home", blocks: view.blocks, id: view.id });
  reconcile(container, blockItems(view, app, ctx, {}, "home"));
}
