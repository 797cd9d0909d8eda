// One message, and the lists of them (channel and thread).

import { h, icon, reconcile } from "./dom.js";
import { mrkdwn } from "./mrkdwn.js";
import { drawBlocks } from "./blocks.js";
import { avatar, badge } from "./people.js";
import { ago, clockTime, dateOf, dayKey, dayName, fullTime, shortTime } from "./clock.js";
import { emoji } from "./emoji.js";
import { hrefOf } from "./route.js";

const versions = new WeakMap();
let counter = 0;
const versionOf = (object) => { if (!versions.has(object)) versions.set(object, (counter += 1)); return versions.get(object); };

const TOGETHER_S = 300;

/** Draw `messages` into `container` with day lines; `options`: {thread: root ts or null, focus: ts to point at}. */
export function drawList(container, messages, app, options) {
  const items = [];
  let previous = null;
  for (const message of messages) {
    const date = dateOf(message.ts);
    const root = options.thread === message.ts;
    if (!options.thread && (!previous || dayKey(dateOf(previous.ts)) !== dayKey(date))) {
      items.push({ key: `day-${dayKey(date)}`, sig: dayName(date), build: () => h("div", { class: "day", role: "separator" }, h("span", null, dayName(date))) });
      previous = null;
    }
    const compact = Boolean(previous) && author(previous, app).id === author(message, app).id && !message.ephemeral && !previous.ephemeral
      && Number(message.ts) - Number(previous.ts) < TOGETHER_S && !(options.thread && previous.ts === options.thread) && !previous.subtype && !hasFrame(message);
    const replies = options.thread ? [] : app.store.replies(message.channel ?? app.route.channel, message.ts).filter((reply) => !reply.ephemeral);
    const sig = [versionOf(message), compact, app.store.version, app.clicks(message.ts), options.focus === message.ts, options.thread ? "" : summarySig(replies, message, app)].join("|");
    items.push({ key: message.ts, sig, build: () => drawMessage(message, app, { compact, root, inThread: Boolean(options.thread), replies, pointed: options.focus === message.ts }) });
    if (root) {
      const count = messages.filter((other) => other !== message && !other.ephemeral).length;
      items.push({ key: "count", sig: String(count), build: () => h("div", { class: "day thread-count", role: "separator" }, h("span", null, count === 1 ? "1 reply" : `${count} replies`)) });
    }
    previous = message;
  }
  reconcile(container, items);
  rove(container);
}

/** One stop for the Tab key per list: the message last focused, else the newest. Arrow keys move between them. */
function rove(container) {
  const all = [...container.querySelectorAll(":scope > .message")];
  const stop = all.find((node) => node.contains(document.activeElement)) ?? all.find((node) => node.dataset.ts === container.dataset.stop) ?? all.at(-1);
  for (const node of all) node.tabIndex = node === stop ? 0 : -1;
  if (container.dataset.roving) return;
  container.dataset.roving = "1";
  container.addEventListener("focusin", (event) => {
    const here = event.target.closest(".message");
    if (!here) return;
    container.dataset.stop = here.dataset.ts;
    for (const node of container.querySelectorAll(":scope > .message")) node.tabIndex = node === here ? 0 : -1;
  });
}

function summarySig(replies, message, app) {
  const last = replies.at(-1);
  return [replies.length, message.reply_count, last?.ts, last ? ago(dateOf(last.ts)) : "", JSON.stringify(app.store.threadStatus(app.route.channel, message.ts)?.status ?? ""), app.route.thread === message.ts].join();
}

function author(message, app) {
  const { store } = app;
  const person = store.person(message.user);
  if (message.bot_id && !person) return { id: message.bot_id, name: message.username || store.bot.name, real_name: message.username || store.bot.name, kind: "bot" };
  if (message.username && person) return { ...person, name: message.username, real_name: message.username };
  return person ?? { id: message.user ?? "?", name: message.user ?? "Someone", kind: "member" };
}

/** Cards (a header or actions among the blocks) stand in a frame; running text does not. */
const hasFrame = (message) => Boolean(message.blocks?.some((block) => block.type === "header" || block.type === "actions"));

function drawMessage(message, app, { compact, root, inThread, replies, pointed }) {
  const { store } = app;
  const who = author(message, app);
  const date = dateOf(message.ts);
  const channel = app.route.channel;
  const quiet = message.subtype && /^(channel|group)_(join|leave|topic|purpose|name)/.test(message.subtype);
  const ctx = app.blockContext({ kind: "message", channel, ts: message.ts, blocks: message.blocks, ephemeral: message.ephemeral });
  const typed = Boolean(message.client_msg_id) && message.blocks?.length === 1; // the composer's own rich_text says no more than the text
  const drawn = message.blocks?.length && !typed;
  const edited = message.edited ? h("span", { class: "edited" }, "(edited)") : null;
  const content = drawn
    ? h("div", { class: hasFrame(message) ? "blocks framed" : "blocks" }, drawBlocks(message.blocks, ctx))
    : h("div", { class: "text", dir: "auto" }, mrkdwn(message.text ?? "", app.names), edited ? " " : null, edited);
  const time = h("time", { class: "when", datetime: date.toISOString(), title: fullTime(date) }, compact ? shortTime(date) : clockTime(date));
  const canReply = !inThread && !message.ephemeral && !quiet;
  const node = h("article", { class: ["message", compact ? "compact" : "", message.ephemeral ? "ephemeral" : "", quiet ? "quiet" : "", pointed ? "pointed" : "", store.me && message.text?.includes(`<@${store.me}>`) ? "for-me" : ""].join(" "),
    testid: root ? `thread-root-${message.ts}` : `message-${message.ts}`, "data-ts": message.ts, tabindex: "-1",
    "aria-label": `${who.real_name || who.name}, ${clockTime(date)}${message.ephemeral ? ", only visible to you" : ""}` },
  h("div", { class: "gutter" }, compact ? time : avatar(who)),
  h("div", { class: "body" },
    message.ephemeral ? h("div", { class: "only-you" }, icon("eye", 14), "Only visible to you") : null,
    compact ? null : h("div", { class: "head" }, h("bdi", { class: "name" }, who.real_name || who.name), badge(who), time),
    message.subtype === "thread_broadcast" ? h("div", { class: "broadcast" }, "replied to a thread") : null,
    content,
    (message.attachments ?? []).map((attachment) => drawAttachment(attachment, app, ctx)),
    message.reactions?.length ? h("div", { class: "reactions" }, message.reactions.map((reaction) => h("span", { class: "reaction", title: reaction.name }, emoji(reaction.name) ?? `:${reaction.name}:`, " ", reaction.count))) : null,
    inThread ? null : replyBar(message, replies, app)),
  canReply ? h("div", { class: "tools" }, h("a", { class: "icon-button", href: hrefOf({ as: store.me, channel, thread: message.thread_ts ?? message.ts }), testid: `reply-${message.ts}`, "aria-label": "Reply in thread", title: "Reply in thread" }, icon("thread", 17))) : null);
  node.addEventListener("keydown", (event) => messageKeys(event, node, app, canReply ? message : null));
  return node;
}

function messageKeys(event, node, app, message) {
  if (event.target !== node) return;
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const all = [...node.parentElement.querySelectorAll(":scope > .message")];
    const next = all[all.indexOf(node) + (event.key === "ArrowUp" ? -1 : 1)];
    if (next) { event.preventDefault(); next.focus(); next.scrollIntoView({ block: "nearest" }); }
  } else if ((event.key === "Enter" || event.key === "ArrowRight") && message) {
    event.preventDefault();
    app.go({ channel: app.route.channel, thread: message.thread_ts ?? message.ts });
  }
}

function drawAttachment(attachment, app, ctx) {
  const node = h("div", { class: "attachment" },
    attachment.pretext ? h("div", null, mrkdwn(attachment.pretext, app.names)) : null,
    attachment.title ? h("strong", null, attachment.title) : null,
    attachment.blocks?.length ? drawBlocks(attachment.blocks, ctx) : attachment.text ? h("div", { dir: "auto" }, mrkdwn(attachment.text, app.names)) : null,
    attachment.footer ? h("small", null, attachment.footer) : null);
  if (/^#?[0-9a-f]{6}$/i.test(attachment.color ?? "")) node.style.setProperty("--mark", attachment.color.startsWith("#") ? attachment.color : `#${attachment.color}`);
  return node;
}

function replyBar(message, replies, app) {
  const status = app.store.threadStatus(app.route.channel, message.ts);
  const count = Math.max(replies.length, message.reply_count ?? 0);
  if (!count && !status) return null;
  const faces = [];
  for (const reply of replies) { const who = author(reply, app); if (!faces.some((face) => face.id === who.id)) faces.push(who); }
  const last = replies.at(-1);
  return h("a", { class: app.route.thread === message.ts ? "reply-bar open" : "reply-bar", href: hrefOf({ as: app.store.me, channel: app.route.channel, thread: message.ts }), testid: `replies-${message.ts}` },
    h("span", { class: "faces" }, faces.slice(0, 4).map((face) => avatar(face, "small"))),
    count ? h("strong", null, count === 1 ? "1 reply" : `${count} replies`) : null,
    status ? h("span", { class: "working" }, statusText(status, app)) : last ? h("span", { class: "last" }, `Last reply ${ago(dateOf(last.ts))}`) : null);
}

/** "Atlas is drafting the quote…" as Slack shows an assistant's status. */
export function statusText(status, app) {
  const lines = status.loading_messages ?? [];
  return `${app.store.bot.name || "The app"} ${lines.length ? lines[app.tick % lines.length] : status.status}`;
}
