// Slack's mrkdwn, as text that arrived escaped (&amp; &lt; &gt;), into nodes. Only the sequences that Slack
// documents are live; everything else is text. `names` resolves ids: {person(id), channel(id), group(id), me}.

import { h, link } from "./dom.js";
import { emoji, withEmoji } from "./emoji.js";
import { slackDate, fullTime } from "./clock.js";

const unescape = (text) => text.replace(/&(amp|lt|gt);/g, (_, name) => ({ amp: "&", lt: "<", gt: ">" })[name]);

/** Plain text objects: literal, but for emoji. */
export function plainText(object) {
  const text = typeof object === "string" ? object : object?.text ?? "";
  return object?.emoji === false ? text : withEmoji(text);
}

/** A text object of either kind. */
export function textObject(object, names) {
  if (!object) return null;
  if (object.type === "mrkdwn") return h("div", { class: "mrkdwn", dir: "auto" }, mrkdwn(object.text ?? "", names, object.verbatim));
  return h("div", { class: "plain", dir: "auto" }, plainText(object));
}

/** mrkdwn with its blocks: code fences, quotes, lines. */
export function mrkdwn(text, names, verbatim = false) {
  const nodes = [];
  const fences = text.split(/```/);
  fences.forEach((part, index) => {
    const fenced = index % 2 === 1 && index < fences.length - 1;
    if (fenced) nodes.push(h("pre", { class: "code", dir: "auto" }, literal(part.replace(/^\n|\n$/g, ""), names)));
    else nodes.push(...quoted(index % 2 === 1 ? "```" + part : part, names, verbatim, index));
  });
  return nodes;
}

/** Inside code only <…> sequences are resolved, nothing is styled. */
function literal(text, names) {
  return text.split(/(<[^<>\n]+>)/).map((part) => (/^<[^<>\n]+>$/.test(part) ? special(part.slice(1, -1), names) : unescape(part)));
}

function quoted(text, names, verbatim, position) {
  let lines = text.split("\n");
  if (position > 0 && lines[0] === "") lines = lines.slice(1);
  const nodes = [];
  let plain = [];
  let quote = null;
  const flush = () => {
    if (plain.length) nodes.push(...withBreaks(plain, names, verbatim));
    if (quote) nodes.push(h("blockquote", { dir: "auto" }, withBreaks(quote, names, verbatim)));
    plain = []; quote = null;
  };
  for (let i = 0; i < lines.length; i += 1) {
    const mark = /^(?:&gt;|>)(?:(&gt;&gt;|>>) ?)?\s?(.*)$/s.exec(lines[i]);
    if (mark && mark[1]) { flush(); quote = [mark[2], ...lines.slice(i + 1)]; flush(); break; }
    if (mark) { if (plain.length) flush(); (quote ??= []).push(mark[2]); }
    else { if (quote) flush(); plain.push(lines[i]); }
  }
  flush();
  return nodes;
}

function withBreaks(lines, names, verbatim) {
  return lines.flatMap((line, i) => (i ? [h("br"), ...inline(line, names, verbatim)] : inline(line, names, verbatim)));
}

const STYLES = { "*": "strong", _: "em", "~": "s" };
// Each character can be read in one way only (a bare < or ` is one that opens nothing), so no text takes long to read.
const SPAN = (mark) => new RegExp(`^[${mark}]((?:<[^<>\\n]*>|\`[^\`\\n]*\`|<(?![^<>\\n]*>)|\`(?![^\`\\n]*\`)|[^${mark}<\`\\n])+?)[${mark}](?![\\p{L}\\p{N}${mark}])`, "u");
const SPANS = { "*": SPAN("*"), _: SPAN("_"), "~": SPAN("~") };
const WORD = /[\p{L}\p{N}]/u;

/** One line of mrkdwn. */
export function inline(line, names, verbatim = false) {
  const nodes = [];
  let text = "";
  const flush = () => { if (text) nodes.push(unescape(text)); text = ""; };
  const take = (match, node) => { flush(); nodes.push(node); return match[0].length; };
  for (let i = 0; i < line.length;) {
    const rest = line.slice(i);
    const before = i ? line[i - 1] : " ";
    let match = null;
    let step = 0;
    if (rest[0] === "<" && (match = /^<([^<>\n]+)>/.exec(rest))) step = take(match, special(match[1], names));
    else if (rest[0] === "`" && (match = /^`([^`\n]+)`/.exec(rest))) step = take(match, h("code", null, literal(match[1], names)));
    else if (STYLES[rest[0]] && !WORD.test(before) && (match = SPANS[rest[0]].exec(rest)) && match[1].trim() === match[1])
      step = take(match, h(STYLES[rest[0]], null, inline(match[1], names, verbatim)));
    else if (rest[0] === ":" && (match = /^:([a-z0-9_+-]+):/.exec(rest)) && emoji(match[1])) step = take(match, emojiNode(match[1]));
    else if (!verbatim && rest[0] === "h" && !WORD.test(before) && (match = /^https?:\/\/[^\s<>|"]*[^\s<>|".,;:!?)\]}'*_~]/.exec(rest)))
      step = take(match, link(unescape(match[0])));
    if (step) i += step;
    else { text += rest[0]; i += 1; }
  }
  flush();
  return nodes;
}

export const emojiNode = (name) => h("span", { class: "emoji", role: "img", "aria-label": name.replaceAll("_", " "), title: `:${name}:` }, emoji(name) ?? `:${name}:`);

/** What stands between < and >. */
function special(body, names) {
  const bar = body.indexOf("|");
  const target = bar < 0 ? body : body.slice(0, bar);
  const label = bar < 0 ? "" : unescape(body.slice(bar + 1));
  if (/^@[UW][A-Z0-9]+$/.test(target)) return mention(target.slice(1), names);
  if (/^#[CGD][A-Z0-9]+$/.test(target)) return channelLink(target.slice(1), names);
  if (/^!(here|channel|everyone)$/.test(target)) return broadcast(target.slice(1));
  if (target.startsWith("!subteam^")) return h("span", { class: "mention" }, label || `@${names.group?.(target.slice(9)) ?? target.slice(9)}`);
  if (target.startsWith("!date^")) {
    const [, stamp, pattern = "", href] = target.split("^");
    return dateNode(Number(stamp), unescape(pattern), href ? unescape(href) : null, label);
  }
  if (/^(https?:|mailto:|tel:)/.test(target)) return label ? link(unescape(target), label) : link(unescape(target), unescape(target).replace(/^mailto:|^tel:/, ""));
  return `<${unescape(body)}>`;
}

export function mention(id, names) {
  const person = names.person(id);
  return h("span", { class: id === names.me ? "mention mine" : "mention", title: person?.title }, h("bdi", null, `@${person?.real_name || person?.name || id}`));
}

export function channelLink(id, names) {
  const channel = names.channel(id);
  if (!channel) return h("span", { class: "mention" }, `#${id}`);
  return h("a", { class: "mention", href: names.href(id) }, `#${channel.name}`);
}

export const broadcast = (range) => h("span", { class: "mention mine" }, `@${range}`);

export function dateNode(stamp, pattern, href, fallback) {
  if (!Number.isFinite(stamp)) return fallback || "";
  const label = slackDate(stamp, pattern) || fallback;
  const time = h("time", { datetime: new Date(stamp * 1000).toISOString(), title: fullTime(new Date(stamp * 1000)), "data-pattern": pattern, "data-stamp": stamp }, label);
  return href ? link(href, time) : time;
}
