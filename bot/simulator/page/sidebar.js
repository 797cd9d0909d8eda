// The left pane: which person this page is, and where they can go.

import { h, icon, reconcile, arrowKeys } from "./dom.js";
import { avatar, badge } from "./people.js";
import { hrefOf } from "./route.js";

export class Sidebar {
  constructor(app, root) {
    this.app = app;
    this.root = root;
    this.switcher = root.querySelector("#switcher");
    this.places = root.querySelector("#places");
    this.people = root.querySelector("#people");
    arrowKeys(root, ".nav-item");
    arrowKeys(this.people, ".person");
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.people.hidden) { event.stopPropagation(); this.#open(false); this.switcher.querySelector("button")?.focus(); }
    });
    document.addEventListener("pointerdown", (event) => { if (!this.people.hidden && !event.target.closest("#people, #switcher")) this.#open(false); });
  }

  #open(open) {
    this.people.hidden = !open;
    this.switcher.querySelector("button")?.setAttribute("aria-expanded", String(open));
    if (open) (this.people.querySelector("[aria-current]") ?? this.people.querySelector(".person"))?.focus();
  }

  render() {
    const { app } = this;
    const { store } = app;
    const me = store.person(store.me);
    reconcile(this.switcher, [{ key: "me", sig: `${store.version}|${store.me}`, build: () => h("div", { class: "me" },
      h("button", { type: "button", testid: "switcher", "aria-haspopup": "true", "aria-controls": "people", "aria-expanded": String(!this.people.hidden), "aria-label": `You are ${me?.real_name ?? ""}. Be someone else`, onclick: () => this.#open(this.people.hidden) },
        avatar(me, "large"), h("span", { class: "who" }, h("bdi", { class: "name" }, me?.real_name || me?.name || "…"), h("small", null, me?.title || "")), icon("down", 16))) }]);
    const folk = store.people.filter((person) => person.kind !== "bot");
    reconcile(this.people, [{ key: "title", sig: "", build: () => h("p", { class: "hint" }, "Be someone else") }, ...folk.map((person) => ({
      key: person.id, sig: `${store.version}|${person.id === store.me}`,
      build: () => h("a", { class: "person", href: hrefOf({ as: person.id, channel: app.route.channel }), testid: `person-${person.id}`, "aria-current": person.id === store.me ? "true" : null, onclick: (event) => { event.preventDefault(); this.#open(false); app.become(person.id); } },
        avatar(person), h("span", { class: "who" }, h("bdi", { class: "name" }, person.real_name || person.name), h("small", null, person.title || person.team_id || "")), badge(person)),
    }))]);
    const rooms = store.channels.filter((channel) => channel.kind === "channel");
    const dms = store.channels.filter((channel) => channel.kind !== "channel");
    const items = [title("Channels", true), ...rooms.map((channel) => this.#place(channel)), title("Direct messages", true)];
    items.push(...dms.map((channel) => this.#place(channel)));
    if (!store.botDm() && store.bot.user_id) items.push({ key: "dm-open", sig: store.bot.name, build: () => h("button", { type: "button", class: "nav-item", testid: "dm-open", onclick: () => app.openDm() }, avatar(store.person(store.bot.user_id) ?? { kind: "bot", id: store.bot.user_id }, "small"), h("span", { class: "nav-name" }, store.bot.name), h("span", { class: "go" }, "Message")) });
    items.push(title("Apps", true), { key: "home", sig: `${store.version}|${app.route.home}`, build: () => h("a", { class: "nav-item", href: hrefOf({ as: store.me, home: true }), testid: "app-home", "aria-current": app.route.home ? "page" : null }, icon("home", 17), h("span", { class: "nav-name" }, `${store.bot.name || "App"} home`), presence(store.bot)) });
    reconcile(this.places, items);
    this.root.querySelector("#team").textContent = store.team?.name || "Workspace";
  }

  #place(channel) {
    const { app } = this;
    const { store } = app;
    const here = !app.route.home && app.route.channel === channel.id;
    const unread = here ? 0 : store.unread[channel.id] ?? 0;
    const other = channel.kind === "im" ? store.person(channel.with) ?? { id: channel.with, kind: channel.with === store.bot.user_id ? "bot" : "member", name: store.channelName(channel) } : null;
    return { key: channel.id, sig: [store.version, here, unread, store.me].join("|"), build: () => h("a", { class: unread ? "nav-item unread" : "nav-item", href: hrefOf({ as: store.me, channel: channel.id }), testid: `channel-${channel.id}`, "aria-current": here ? "page" : null,
      "aria-label": `${channel.kind === "channel" ? "Channel " : "Direct messages with "}${store.channelName(channel)}${unread ? `, ${unread} unread` : ""}` },
    other ? avatar(other, "small") : icon(channel.kind === "mpim" ? "people" : "hash", 17), h("bdi", { class: "nav-name" }, store.channelName(channel)),
    channel.is_ext_shared ? h("span", { class: "shared", title: "Shared with another organisation" }, icon("link", 14)) : null,
    other?.id === store.bot.user_id ? presence(store.bot) : null, unread ? h("span", { class: "count", "aria-hidden": "true" }, unread > 99 ? "99+" : unread) : null) };
  }
}

const title = (text) => ({ key: `title-${text}`, sig: text, build: () => h("h2", { class: "nav-title" }, text) });

/** The bot's dot: green while it is connected. */
export function presence(bot) {
  const words = bot.connected ? "online" : "offline";
  return h("span", { class: `presence ${words}`, testid: "bot-presence", role: "img", "aria-label": `${bot.name || "The app"} is ${words}`, title: `${bot.name || "The app"} is ${words}` });
}
