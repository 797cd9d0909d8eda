// What this person's page knows: the server's snapshot, kept current by its frames. The only state beside it is
// what a person has typed into blocks (forms) and how their latest clicks fare (interactions).

import { setNow } from "./clock.js";
import { Form } from "./inputs.js";

const byTs = (a, b) => (a.ts === b.ts ? 0 : Number(a.ts) < Number(b.ts) || (Number(a.ts) === Number(b.ts) && a.ts < b.ts) ? -1 : 1);
const SLACKBOT = { id: "USLACKBOT", name: "Slackbot", real_name: "Slackbot", kind: "bot", color: "#7a7f87" };

export class Store {
  me = null; team = { name: "" }; bot = { connected: false, commands: [] }; people = []; groups = {}; channels = [];
  home = null; views = []; statuses = []; panel = false; unread = {};
  version = 0;              // moves with people, channels and the bot: everything that names are drawn from
  #messages = new Map();    // channel -> Map(ts -> message)
  #order = new Map();       // channel -> its messages in order, until the next change
  #forms = new Map();
  #interactions = new Map(); // place of the click -> {state, error}
  #places = new Map();       // interaction id -> place
  #early = new Map();        // interaction id -> frame that came before its id was known
  #viewErrors = new Map();
  #listeners = [];

  listen(listener) { this.#listeners.push(listener); }
  changed(what) { for (const listener of this.#listeners) listener(what); }

  /** Replace everything by the server's snapshot. */
  load(snapshot) {
    const samePerson = this.me === snapshot.me;
    const { now, messages, ...rest } = snapshot;
    if (now) setNow(now);
    Object.assign(this, { home: null, views: [], statuses: [], panel: false }, rest);
    if (!samePerson) { this.#forms.clear(); }
    this.unread = { ...snapshot.unread };
    const local = samePerson ? this.#localNotes() : [];
    this.#messages = new Map(Object.entries(messages ?? {}).map(([channel, list]) => [channel, new Map(list.map((message) => [message.ts, message]))]));
    this.#order.clear();
    for (const [channel, note] of local) this.#channel(channel).set(note.ts, note);
    this.#interactions.clear(); this.#places.clear(); this.#early.clear(); this.#viewErrors.clear();
    this.version += 1;
    this.changed({ event: "loaded", samePerson });
  }

  #localNotes() {
    return [...this.#messages].flatMap(([channel, list]) => [...list.values()].filter((message) => message.local).map((message) => [channel, message]));
  }

  /** The messages of a channel, about to be changed. */
  #channel(id) {
    this.#order.delete(id);
    if (!this.#messages.has(id)) this.#messages.set(id, new Map());
    return this.#messages.get(id);
  }

  /** Apply one frame of the live connection. */
  apply(frame) {
    switch (frame.event) {
      case "message": {
        const list = this.#channel(frame.channel);
        const known = list.get(frame.message.ts);
        list.set(frame.message.ts, frame.message);
        this.#forgetClicks(`message:${frame.channel}:${frame.message.ts}/`);
        if (!known) this.#count(frame.channel, frame.message);
        break;
      }
      case "message_deleted": this.#channel(frame.channel).delete(frame.ts); break;
      case "view": {
        const at = this.views.findIndex((view) => view.id === frame.view.id);
        const previous = this.views.findIndex((view) => view.id === frame.view.previous_view_id);
        if (at >= 0) this.views = this.views.with(at, frame.view);
        else this.views = [...(previous >= 0 ? this.views.slice(0, previous + 1) : this.views), frame.view];
        this.#forgetClicks(`view:${frame.view.id}/`);
        this.#viewErrors.delete(frame.view.id);
        break;
      }
      case "view_closed": {
        const at = this.views.findIndex((view) => view.id === frame.view_id);
        if (at >= 0) { for (const view of this.views.slice(at)) this.#forget(`view:${view.id}`); this.views = this.views.slice(0, at); }
        break;
      }
      case "home": this.home = frame.view; this.#forgetClicks("home/"); break;
      case "status":
        this.statuses = this.statuses.filter((status) => status.channel !== frame.channel || status.thread_ts !== frame.thread_ts);
        if (frame.status) this.statuses = [...this.statuses, frame];
        break;
      case "bot": this.bot = { ...this.bot, connected: frame.connected, ...(frame.commands ? { commands: frame.commands } : {}) }; this.version += 1; break;
      case "people": this.people = frame.people; this.version += 1; break;
      case "channels": this.channels = frame.channels; this.version += 1; break;
      case "interaction": this.#interaction(frame); break;
      case "view_errors": this.#viewErrors.set(frame.view_id, frame.errors); break;
      case "clock": setNow(frame.now); break;
      default: return;
    }
    this.changed(frame);
  }

  #count(channel, message) {
    if (message.user === this.me || message.local) return;
    const forMe = message.text?.includes(`<@${this.me}>`) || ["im", "mpim"].includes(this.channel(channel)?.kind);
    if (message.thread_ts && message.thread_ts !== message.ts && !forMe) return;
    this.unread = { ...this.unread, [channel]: (this.unread[channel] ?? 0) + 1 };
  }

  /** Everything in this channel has been seen; says whether that is new. */
  read(channel) {
    if (!this.unread[channel]) return false;
    this.unread = { ...this.unread, [channel]: 0 };
    return true;
  }

  // Clicks -----------------------------------------------------------------------------------------------

  /** Note that a click at `place` is under way. */
  begin(place) { this.#interactions.set(place, { state: "pending" }); this.changed({ event: "interaction" }); }

  /** The server named the click: its later frames belong to `place`. */
  bind(id, place) {
    this.#places.set(id, place);
    const early = this.#early.get(id);
    if (early) { this.#early.delete(id); this.apply(early); }
  }

  fail(place, error) { this.#interactions.set(place, { state: "failed", error }); this.changed({ event: "interaction" }); }
  settle(place) { if (this.#interactions.delete(place)) this.changed({ event: "interaction" }); }

  /** The clicks of one owner ("view:V1", "home", or a message's ts) in one word, to see whether their look changed. */
  clickMarks(owner) {
    let marks = "";
    for (const [place, { state, error }] of this.#interactions) if (place.startsWith(`${owner}/`) || place.includes(`:${owner}/`)) marks += `${place}=${state}${error ?? ""};`;
    return marks;
  }

  status(place) { return this.#interactions.get(place) ?? null; }

  #interaction(frame) {
    const place = this.#places.get(frame.id);
    if (!place) { if (frame.state !== "pending") this.#early.set(frame.id, frame); return; }
    if (frame.state === "acked") this.#interactions.delete(place);
    else if (frame.state === "failed") this.#interactions.set(place, { state: "failed", error: words(frame, this.bot.name) });
  }

  #forgetClicks(prefix) { for (const place of this.#interactions.keys()) if (place.startsWith(prefix)) this.#interactions.delete(place); }
  #forget(owner) { this.#forms.delete(owner); this.#forgetClicks(`${owner}/`); this.#viewErrors.delete(owner.slice(5)); }

  form(owner) {
    if (!this.#forms.has(owner)) this.#forms.set(owner, new Form());
    return this.#forms.get(owner);
  }

  viewErrors(viewId) { return this.#viewErrors.get(viewId) ?? {}; }
  setViewErrors(viewId, errors) { this.#viewErrors.set(viewId, errors); this.changed({ event: "view_errors" }); }

  // Reading ----------------------------------------------------------------------------------------------

  person(id) { return id === SLACKBOT.id ? SLACKBOT : this.people.find((person) => person.id === id) ?? null; }
  channel(id) { return this.channels.find((channel) => channel.id === id) ?? null; }
  message(channel, ts) { return this.#messages.get(channel)?.get(ts) ?? null; }

  /** This channel's messages in order, its own timeline and its threads; kept until something in it changes. */
  #sorted(channel) {
    let found = this.#order.get(channel);
    if (!found) {
      const all = [...(this.#messages.get(channel)?.values() ?? [])].sort(byTs);
      const threads = new Map();
      for (const message of all) if (message.thread_ts && message.thread_ts !== message.ts) threads.set(message.thread_ts, [...(threads.get(message.thread_ts) ?? []), message]);
      const timeline = all.filter((message) => !message.thread_ts || message.thread_ts === message.ts || message.subtype === "thread_broadcast");
      this.#order.set(channel, (found = { timeline, threads }));
    }
    return found;
  }

  /** What the channel itself shows: everything that is no mere reply. */
  timeline(channel) {
    return this.#sorted(channel).timeline;
  }

  replies(channel, threadTs) { return this.#sorted(channel).threads.get(threadTs) ?? []; }
  threadStatus(channel, threadTs) { return this.statuses.find((status) => status.channel === channel && status.thread_ts === threadTs && status.status) ?? null; }

  botDm() { return this.channels.find((channel) => channel.kind === "im" && channel.with === this.bot.user_id) ?? null; }

  channelName(channel) {
    if (!channel) return "";
    if (channel.kind === "mpim") return this.#groupName(channel);
    if (channel.kind !== "im") return channel.name;
    const other = this.person(channel.with);
    return other?.real_name || other?.name || (channel.with === this.bot.user_id ? this.bot.name : channel.with);
  }

  /** A group DM goes by the others in it. */
  #groupName(channel) {
    const others = channel.members.filter((id) => id !== this.me).map((id) => this.person(id) ?? { name: id });
    return others.map((person) => (person.real_name || person.name).split(" ")[0]).join(", ");
  }

  /** The name with a channel's mark, where there is one. */
  placeName(channel) { return channel.kind === "channel" ? `#${channel.name}` : this.channelName(channel); }

  /** Say something to this person alone, as Slackbot does; it lives in this page only. */
  note(channel, text, threadTs = null) {
    const ts = `${(Date.now() / 1000).toFixed(6)}`;
    this.#channel(channel).set(ts, { type: "message", user: SLACKBOT.id, text, ts, ...(threadTs ? { thread_ts: threadTs } : {}), ephemeral: true, local: true });
    this.changed({ event: "message", channel });
  }
}

/** Slack's words for an interaction that failed. */
function words(frame, botName) {
  const error = frame.error || "operation_timeout";
  if (/\s/.test(error)) return error;
  if (frame.kind === "view_submission") return "We had some trouble connecting. Try again?";
  if (frame.kind === "command") return error;
  return error.includes("timeout") ? "Operation timed out. Apps need to respond within 3 seconds." : `${botName || "This app"} is not responding (${error}).`;
}
