// Puts the page together: connection → store → panes, address → place. The panes only draw; what a click means
// is decided here and at the server.

import { h, icon, putsOff, reconcile } from "./dom.js";
import { Store } from "./store.js";
import { Live, post } from "./live.js";
import { readRoute, hrefOf, readPermalink } from "./route.js";
import { Sidebar, presence } from "./sidebar.js";
import { Composer } from "./composer.js";
import { Modals, drawHome } from "./views.js";
import { Panel } from "./panel.js";
import { drawList, statusText } from "./messages.js";
import { toast } from "./dialogs.js";
import { slackDate } from "./clock.js";

const el = (id) => document.getElementById(id);
const NEAR_END = 60;

class App {
  store = new Store(); route = readRoute(); panelOpen = false; tick = 0;
  #queued = false; #ends = new Map(); #pointed = null; #homeFor = null; #commands = new Map();

  start() {
    const permalink = readPermalink(new URL(location.href));
    if (permalink) { this.wanted = permalink; history.replaceState(null, "", `/${location.hash}`); }
    this.toast = toast;
    this.sidebar = new Sidebar(this, el("sidebar"));
    this.composer = new Composer(this, "composer", el("composer"));
    this.threadComposer = new Composer(this, "thread-composer", el("thread-composer"));
    this.modals = new Modals(this);
    this.panel = new Panel(this, el("panel"));
    this.live = new Live({
      snapshot: (snapshot) => { this.store.load(snapshot); this.#arrive(); },
      frame: (frame) => this.store.apply(frame),
      online: (online) => this.#online(online),
    });
    this.store.listen((change) => this.#changed(change));
    addEventListener("hashchange", () => this.#moved());
    document.addEventListener("click", (event) => this.#followLink(event));
    document.addEventListener("keydown", (event) => this.#key(event));
    el("latest").addEventListener("click", () => { el("main-scroll").scrollTop = el("main-scroll").scrollHeight; el("latest").hidden = true; });
    el("skip").addEventListener("click", (event) => { event.preventDefault(); this.focusPane(); });
    for (const id of ["main-scroll", "thread-scroll"]) {
      el(id).addEventListener("scroll", () => { if (this.#atEnd(id)) el("latest").hidden = true; }, { passive: true });
      new ResizeObserver(() => { if (this.#ends.get(id)) el(id).scrollTop = el(id).scrollHeight; }).observe(el(id));
    }
    setInterval(() => { this.tick += 1; this.#freshenTimes(); this.draw(); }, 4000);
    this.live.follow(this.route.as ?? sessionStorage.getItem("atlas-as"));
  }

  // Moving around ------------------------------------------------------------------------------------------

  go(place) { location.hash = hrefOf({ as: this.store.me, ...place }); }

  become(person) { location.hash = hrefOf({ as: person, ...(this.route.home ? { home: true } : { channel: this.route.channel, thread: this.route.thread }) }); }

  #moved() {
    const before = this.route;
    this.route = readRoute();
    if (this.route.as && this.route.as !== this.store.me) { delete document.body.dataset.ready; this.live.follow(this.route.as); return; }
    this.#settle();
    const moved = before.channel !== this.route.channel || before.home !== this.route.home;
    if (moved) this.#ends.delete("main-scroll");
    this.arrived ||= moved || before.thread !== this.route.thread;
    this.drawNow();
    if (this.route.message) return;
    if (this.route.thread && before.thread !== this.route.thread && !matchMedia("(pointer: coarse)").matches) this.threadComposer.focus();
    else if (moved && !this.route.home && !matchMedia("(pointer: coarse)").matches) this.composer.focus();
    if (before.thread && !this.route.thread && !moved) document.querySelector(`[data-testid="message-${CSS.escape(before.thread)}"]`)?.focus({ preventScroll: true });
  }

  /** After a snapshot: the first place to stand, if the address names none. */
  #arrive() {
    const { store } = this;
    sessionStorage.setItem("atlas-as", store.me);
    this.#homeFor = null;
    if (this.wanted) {
      const place = this.#placeOf(this.wanted);
      this.wanted = null;
      if (place) { history.replaceState(null, "", hrefOf(place)); this.route = readRoute(); }
    }
    if (this.route.as !== store.me) { history.replaceState(null, "", hrefOf({ ...this.route, as: store.me })); this.route = readRoute(); }
    this.#settle();
    if (!this.panelStarted) { this.panelStarted = true; this.showPanel(store.panel && innerWidth >= 1280, false); }
    this.draw(true);
  }

  #settle() {
    const { store, route } = this;
    const gone = route.channel && !store.channel(route.channel);
    const narrowStart = innerWidth < 760 && !route.channel && !route.home;
    if (route.home || narrowStart || !store.me || (route.channel && !gone)) return;
    const first = store.channels.find((channel) => channel.kind === "channel") ?? store.channels[0];
    history.replaceState(null, "", first ? hrefOf({ as: store.me, channel: first.id }) : hrefOf({ as: store.me, home: true }));
    this.route = readRoute();
  }

  #followLink(event) {
    const anchor = event.target.closest("a[href]");
    if (!anchor || event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    const url = new URL(anchor.href);
    if (url.origin !== location.origin) return;
    const permalink = readPermalink(url);
    if (permalink) { event.preventDefault(); if (this.modals.top) void this.modals.close(true); this.#openPermalink(permalink); }
  }

  #openPermalink(permalink) {
    const place = this.#placeOf(permalink);
    if (!place) return;
    this.#pointed = null;
    const href = hrefOf(place);
    if (location.hash === href) this.#moved(); else location.hash = href;
  }

  /** Where a permalink leads this person; null (and a word about it) if they may not go there. */
  #placeOf({ channel, message, thread }) {
    const { store } = this;
    if (!store.channel(channel)) { toast("You are not in that channel.", "bad"); return null; }
    return { as: store.me, channel, message, thread: thread ?? (message ? store.message(channel, message)?.thread_ts : null) ?? null };
  }

  async openDm() {
    const answer = await post("/page/dm", { as: this.store.me });
    if (!answer.ok) { toast(answer.text || answer.error, "bad"); return; }
    if (!this.store.channel(answer.channel)) this.store.apply({ event: "channels", channels: [...this.store.channels, { id: answer.channel, name: this.store.bot.name, kind: "im", with: this.store.bot.user_id, members: [this.store.me, this.store.bot.user_id], is_ext_shared: false }] });
    this.go({ channel: answer.channel });
  }

  showPanel(open, focus = true) {
    this.panelOpen = open;
    el("panel").hidden = !open;
    document.body.classList.toggle("with-panel", open);
    this.panel.run(open);
    this.draw();
    if (focus) (open ? el("panel") : document.querySelector("[data-testid=panel-toggle]"))?.focus();
  }

  #key(event) {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) {
      if (this.panelOpen && (el("panel").contains(document.activeElement) || innerWidth < 760)) this.showPanel(false);
      else if (this.route.thread) this.go({ channel: this.route.channel });
    }
    if (event.key === "F6") {
      event.preventDefault();
      const panes = ["sidebar", "main", "thread", "panel"].map(el).filter((pane) => !pane.hidden && pane.offsetParent !== null);
      const at = panes.findIndex((pane) => pane.contains(document.activeElement));
      this.#enter(panes[(at + (event.shiftKey ? panes.length - 1 : 1)) % panes.length]);
    }
  }

  #enter(pane) { (pane.querySelector("[aria-current=page], textarea, button:not([disabled])") ?? pane).focus(); }
  focusPane() { this.#enter(this.route.thread ? el("thread") : el("main")); }
  focusLastMessage(inThread) { [...el(inThread ? "replies" : "messages").querySelectorAll(".message")].at(-1)?.focus(); }

  // Clicking -----------------------------------------------------------------------------------------------

  get names() {
    const { store } = this;
    return { me: store.me, person: (id) => store.person(id) ?? (id === store.bot.user_id ? { name: store.bot.name } : null), channel: (id) => store.channel(id), group: (id) => store.groups[id], href: (id) => hrefOf({ as: store.me, channel: id }) };
  }

  /** A word that changes whenever the look of clicks under `owner` (a ts, a view's place) does. */
  clicks(owner) { return this.store.clickMarks(owner); }

  /** What blocks need to draw and to act. Place: {kind: "message"|"view"|"home", …}. */
  blockContext(place) {
    const { store } = this;
    const owner = place.kind === "message" ? `message:${place.channel}:${place.ts}` : place.kind === "view" ? `view:${place.id}` : "home";
    const form = store.form(owner);
    const spot = (blockId, actionId) => `${owner}/${blockId}/${actionId}`;
    return {
      names: this.names, people: store.people, channels: store.channels, form, scope: owner.replace(/[^\w-]/g, "_"),
      status: (blockId, actionId) => store.status(spot(blockId, actionId)),
      redraw: () => { store.version += 1; this.draw(); },
      suggest: (blockId, element, typed) => post("/page/suggest", { as: store.me, block_id: blockId, action_id: element.action_id, value: typed, ...spotOf(place) }),
      act: async (blockId, element, selected) => {
        const at = spot(blockId, element.action_id);
        if (store.status(at)?.state === "pending") return;
        store.begin(at);
        const body = { as: store.me, block_id: blockId, action_id: element.action_id, element, state_values: form.state(place.blocks) };
        if (selected !== undefined) body.selected = selected;
        Object.assign(body, spotOf(place));
        const answer = await post("/page/click", body);
        if (!answer.ok) store.fail(at, answer.text || answer.error);
        else if (answer.interaction_id) store.bind(answer.interaction_id, at);
        else store.settle(at);
      },
    };
  }

  /** A slash command is on its way; if nobody answers, Slackbot says so. */
  watchCommand(id, place, channel, command) {
    this.#commands.set(place, { channel, command });
    this.store.begin(place);
    this.store.bind(id, place);
  }

  #checkCommands() {
    for (const [place, { channel, command }] of this.#commands) {
      const status = this.store.status(place);
      if (status?.state === "pending") continue;
      this.#commands.delete(place);
      if (status?.state === "failed") {
        this.store.settle(place);
        this.store.note(channel, /\s/.test(status.error) ? status.error : `\`${command}\` failed with the error "${status.error}"`);
      }
    }
  }

  sent(kind, ts) {
    const id = kind === "composer" ? "main-scroll" : "thread-scroll";
    this.#ends.set(id, true);
    el(id).scrollTop = el(id).scrollHeight;
    void ts;
  }

  // Drawing ------------------------------------------------------------------------------------------------

  #online(online) {
    el("offline").hidden = online;
    if (online) { this.drawNow(); document.body.dataset.ready = "1"; }
    else { delete document.body.dataset.ready; }
  }

  #changed(change) {
    if (change.event === "interaction") this.#checkCommands();
    if (change.event === "view_errors" && change.view_id) queueMicrotask(() => this.modals.pointAtErrors(change.view_id));
    if (change.event === "message" && change.message && change.channel === this.route.channel && !this.#atEnd("main-scroll") && !this.route.home && change.message.user !== this.store.me
      && (!change.message.thread_ts || change.message.thread_ts === change.message.ts) && Number(change.message.ts) >= Number(this.store.timeline(change.channel).at(-1)?.ts ?? 0)) el("latest").hidden = false;
    this.draw();
  }

  draw(arrived = false) {
    this.arrived ||= arrived;
    if (this.#queued) return;
    this.#queued = true;
    queueMicrotask(() => { this.#queued = false; this.drawNow(); });
  }

  #atEnd(id) {
    const box = el(id);
    const end = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    this.#ends.set(id, end);
    return end;
  }

  #redraw = () => this.drawNow();

  drawNow() {
    const { store, route } = this;
    if (!store.me || putsOff(this.#redraw)) return;
    const arrived = this.arrived;
    this.arrived = false;
    const stayMain = arrived || this.#ends.get("main-scroll") !== false;
    const stayThread = arrived || this.#ends.get("thread-scroll") !== false;
    const channel = route.home ? null : store.channel(route.channel);
    if (channel && !document.hidden && store.read(channel.id)) void post("/page/read", { as: store.me, channel: channel.id });
    document.body.dataset.pane = this.panelOpen ? "panel" : channel && route.thread ? "thread" : channel || route.home ? "main" : "sidebar";
    document.title = `${route.home ? `${store.bot.name} home` : channel ? store.placeName(channel) : "Workspace"} · ${store.team?.name ?? ""}`;
    this.sidebar.render();
    this.#drawBar(channel);
    el("messages").hidden = !channel;
    el("home").hidden = !route.home;
    el("composer").hidden = !channel;
    if (channel) {
      const list = store.timeline(channel.id);
      el("messages").setAttribute("aria-label", `Messages in ${store.channelName(channel)}`);
      if (list.length) drawList(el("messages"), list, this, { thread: null, focus: route.thread ? null : route.message });
      else reconcile(el("messages"), [{ key: "empty", sig: channel.id + store.bot.name, build: () => this.#welcome(channel) }]);
      this.composer.aim({ channel: channel.id, label: `Message ${store.placeName(channel)}` });
    } else el("messages").replaceChildren();
    if (route.home) {
      if (this.#homeFor !== store.me) { this.#homeFor = store.me; void post("/page/home_open", { as: store.me }); }
      drawHome(el("home"), this);
      if (arrived) el("main-scroll").scrollTop = 0;
    } else this.#homeFor = null;
    this.#drawThread(channel);
    if (channel && stayMain && !(route.message && !route.thread)) el("main-scroll").scrollTop = el("main-scroll").scrollHeight;
    if (channel && route.thread && stayThread && !route.message) el("thread-scroll").scrollTop = el("thread-scroll").scrollHeight;
    this.modals.render();
    this.#pointAt(arrived);
  }

  #pointAt(arrived) {
    const { route } = this;
    if (!route.message || (this.#pointed === route.message && !arrived)) return;
    const pane = route.thread ? el("thread") : el("main");
    const node = pane.querySelector(`[data-ts="${CSS.escape(route.message)}"]`);
    if (!node) return;
    this.#pointed = route.message;
    this.#ends.set(route.thread ? "thread-scroll" : "main-scroll", false);
    node.scrollIntoView({ block: "center" });
    node.focus({ preventScroll: true });
  }

  #welcome(channel) {
    const bot = this.store.bot.name || "the app";
    const direct = channel.kind === "im";
    if (channel.kind === "mpim") return h("div", { class: "empty" }, icon("people", 34), h("p", null, h("strong", null, `You, ${this.store.channelName(channel)}`)), h("p", null, `Mention @${bot} to ask for something.`));
    return h("div", { class: "empty" }, icon(direct ? "calm" : "hash", 34), h("p", null, h("strong", null, direct ? `You and ${this.store.channelName(channel)}` : `This is the beginning of #${channel.name}`)), h("p", null, direct ? "Write what you need; no mention is necessary here." : `Mention @${bot} to ask for something.`));
  }

  #drawBar(channel) {
    const { store, route } = this;
    const dm = store.botDm();
    const withBot = route.home || (channel?.kind === "im" && channel.with === store.bot.user_id);
    const members = channel?.members?.length ?? 0;
    const name = route.home ? store.bot.name : channel ? store.channelName(channel) : "";
    reconcile(el("main-bar"), [{ key: "bar", sig: [store.version, route.home, channel?.id, this.panelOpen, store.panel, store.me].join("|"), build: () => h("div", { class: "bar-row" },
      h("a", { class: "icon-button back", href: hrefOf({ as: store.me }), "aria-label": "Back to channels", testid: "back" }, icon("back")),
      channel && channel.kind !== "im" ? icon(channel.kind === "mpim" ? "people" : "hash", 18) : withBot ? presence(store.bot) : null,
      h("h2", { id: "place-name" }, h("bdi", null, name)),
      channel?.is_ext_shared ? h("span", { class: "badge external" }, "Shared") : null,
      channel?.topic ? h("small", { class: "topic", dir: "auto", title: channel.topic }, channel.topic) : null,
      withBot ? h("div", { class: "tabs" },
        h("a", { href: hrefOf({ as: store.me, home: true }), "aria-current": route.home ? "page" : null, testid: "tab-home" }, "Home"),
        h("a", { href: dm ? hrefOf({ as: store.me, channel: dm.id }) : "#", "aria-current": route.home ? null : "page", testid: "tab-messages", onclick: (event) => { if (!dm) { event.preventDefault(); void this.openDm(); } } }, "Messages")) : null,
      h("span", { class: "space" }),
      channel && channel.kind !== "im" ? h("span", { class: "members", title: channel.members.map((id) => store.person(id)?.real_name ?? id).join(", "), "aria-label": `${members} members` }, icon("people", 16), members) : null,
      !withBot && store.bot.user_id ? h("span", { class: "bot-state" }, presence(store.bot), store.bot.name) : null,
      store.panel ? h("button", { type: "button", class: "pill", testid: "panel-toggle", "aria-expanded": String(this.panelOpen), "aria-controls": "panel", onclick: () => this.showPanel(!this.panelOpen) }, icon("world", 16), h("span", null, "The world")) : null) }]);
  }

  #drawThread(channel) {
    const { store, route } = this;
    const open = Boolean(channel && route.thread);
    el("thread").hidden = !open;
    document.body.classList.toggle("with-thread", open);
    if (!open) { el("replies").replaceChildren(); return; }
    const root = store.message(channel.id, route.thread);
    const replies = store.replies(channel.id, route.thread);
    reconcile(el("thread-bar"), [{ key: "bar", sig: [channel.id, store.version].join(), build: () => h("div", { class: "bar-row" },
      h("a", { class: "icon-button back", href: hrefOf({ as: store.me, channel: channel.id }), "aria-label": "Back to the channel", testid: "thread-back" }, icon("back")),
      h("h2", null, "Thread"), h("small", null, h("bdi", null, store.placeName(channel))), h("span", { class: "space" }),
      h("a", { class: "icon-button close", href: hrefOf({ as: store.me, channel: channel.id }), "aria-label": "Close thread", testid: "thread-close" }, icon("close"))) }]);
    const shown = root ? [root, ...replies] : [{ ts: route.thread, text: "_This message was deleted or is not visible to you._", subtype: "tombstone", user: "USLACKBOT", type: "message" }, ...replies];
    drawList(el("replies"), root ? shown : this.#tombstone(shown), this, { thread: route.thread, focus: route.message });
    const status = store.threadStatus(channel.id, route.thread);
    reconcile(el("thread-status"), status ? [{ key: "s", sig: statusText(status, this), build: () => h("div", { class: "working" }, h("i", { class: "pulse", "aria-hidden": "true" }), statusText(status, this)) }] : []);
    this.threadComposer.aim({ channel: channel.id, thread: route.thread, label: "Reply…" });
  }

  #tombstone(shown) {
    if (this.lastTombstone?.ts !== shown[0].ts) this.lastTombstone = shown[0];
    return [this.lastTombstone, ...shown.slice(1)];
  }

  #freshenTimes() {
    for (const time of document.querySelectorAll("time[data-pattern]")) time.textContent = slackDate(Number(time.dataset.stamp), time.dataset.pattern) || time.textContent;
  }
}

/** Where a block stands, as the server names it. */
function spotOf(place) {
  if (place.kind === "message") return { channel: place.channel, message_ts: place.ts };
  return place.kind === "view" ? { view_id: place.id } : { home: true };
}

new App().start();
