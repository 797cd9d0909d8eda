// rich_text blocks: their elements are literal, so this only maps kinds to elements.

import { h, link } from "./dom.js";
import { emoji } from "./emoji.js";
import { mention, channelLink, broadcast, dateNode, emojiNode } from "./mrkdwn.js";

/** A rich_text block. */
export function richText(block, names) {
  return h("div", { class: "rich-text" }, (block.elements ?? []).map((element) => part(element, names)));
}

function part(element, names) {
  const content = (element.elements ?? []).map((child) => leaf(child, names));
  switch (element.type) {
    case "rich_text_section": return h("div", { class: "rich-section", dir: "auto" }, content);
    case "rich_text_preformatted": return h("pre", { class: "code", dir: "auto" }, content);
    case "rich_text_quote": return h("blockquote", { dir: "auto" }, content);
    case "rich_text_list": {
      const items = (element.elements ?? []).map((item) => h("li", { dir: "auto" }, item.type === "rich_text_section" ? (item.elements ?? []).map((child) => leaf(child, names)) : part(item, names)));
      const indent = `indent-${Math.min(element.indent ?? 0, 8)} list-depth-${(element.indent ?? 0) % 3}`;
      if (element.style !== "ordered") return h("ul", { class: indent }, items);
      const offset = element.offset ?? 0;
      return h("ol", { class: `${indent} numbers-${Math.min(String(offset + items.length).length, 4)}`, start: offset + 1 }, items);
    }
    default: return h("div", null, content);
  }
}

function leaf(element, names) {
  return styled(bare(element, names), element.style);
}

function bare(element, names) {
  switch (element.type) {
    case "text": return element.text ?? "";
    case "link": return link(element.url ?? "", element.text || element.url);
    case "user": return mention(element.user_id, names);
    case "channel": return channelLink(element.channel_id, names);
    case "usergroup": return h("span", { class: "mention" }, `@${names.group?.(element.usergroup_id) ?? element.usergroup_id}`);
    case "broadcast": return broadcast(element.range);
    case "emoji": return element.unicode && !emoji(element.name) ? String.fromCodePoint(...element.unicode.split("-").map((code) => Number.parseInt(code, 16))) : emojiNode(element.name ?? "");
    case "date": return dateNode(Number(element.timestamp), element.format ?? "", element.url, element.fallback);
    case "color": return h("code", null, element.value ?? "");
    default: return element.text ?? "";
  }
}

function styled(node, style) {
  if (!style) return node;
  let result = node;
  if (style.code) result = h("code", null, result);
  if (style.strike) result = h("s", null, result);
  if (style.underline) result = h("u", null, result);
  if (style.italic) result = h("em", null, result);
  if (style.bold) result = h("strong", null, result);
  return result;
}
