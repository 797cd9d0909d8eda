// The markdown block (standard Markdown, as models write it) into nodes. A subset that covers what Slack
// shows: headings, lists, task lists, tables, quotes, code, rules, links. Images become labelled links.

import { h, link } from "./dom.js";
import { emoji } from "./emoji.js";
import { mention, channelLink, emojiNode } from "./mrkdwn.js";

/** Markdown source to an array of block nodes. */
export function markdown(source, names) { return blocks(source.replace(/\r\n?/g, "\n").split("\n"), names, 0); }

const DEEPEST = 12; // quotes and lists nested deeper than this are shown as text

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function blocks(lines, names, depth) {
  if (depth > DEEPEST) return [h("p", { dir: "auto" }, lines.join("\n"))];
  const nodes = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if (!line.trim()) i += 1;
    else if ((match = FENCE.exec(line))) {
      const close = lines.findIndex((other, at) => at > i && other.trim().startsWith(match[1]));
      const end = close < 0 ? lines.length : close;
      nodes.push(h("pre", { class: "code", dir: "auto" }, h("code", null, lines.slice(i + 1, end).join("\n"))));
      i = end + 1;
    } else if ((match = HEADING.exec(line))) {
      nodes.push(h(`h${Math.min(match[1].length + 2, 6)}`, { class: `md-h${match[1].length}`, dir: "auto" }, inline(match[2], names)));
      i += 1;
    } else if (RULE.test(line)) { nodes.push(h("hr")); i += 1; }
    else if (/^ {0,3}>/.test(line)) {
      const start = i;
      while (i < lines.length && /^ {0,3}>/.test(lines[i])) i += 1;
      nodes.push(h("blockquote", { dir: "auto" }, blocks(lines.slice(start, i).map((text) => text.replace(/^ {0,3}> ?/, "")), names, depth + 1)));
    } else if (line.includes("|") && TABLE_RULE.test(lines[i + 1] ?? "") && lines[i + 1].includes("-")) {
      const start = i;
      i += 2;
      while (i < lines.length && lines[i].includes("|") && lines[i].trim()) i += 1;
      nodes.push(table(lines[start], lines[start + 1], lines.slice(start + 2, i), names));
    } else if (ITEM.test(line)) {
      const start = i;
      i += 1;
      while (i < lines.length && (ITEM.test(lines[i]) || /^\s{2,}\S/.test(lines[i]) || (!lines[i].trim() && (ITEM.test(lines[i + 1] ?? "") || /^\s{2,}\S/.test(lines[i + 1] ?? ""))))) i += 1;
      nodes.push(list(lines.slice(start, i), names, depth));
    } else {
      const start = i;
      i += 1;
      while (i < lines.length && lines[i].trim() && !FENCE.test(lines[i]) && !HEADING.test(lines[i]) && !ITEM.test(lines[i]) && !RULE.test(lines[i]) && !/^ {0,3}>/.test(lines[i])
        && !(lines[i].includes("|") && TABLE_RULE.test(lines[i + 1] ?? ""))) i += 1;
      const text = lines.slice(start, i);
      nodes.push(h("p", { dir: "auto" }, text.flatMap((part, at) => (at ? [h("br"), inline(part, names)] : [inline(part, names)]))));
    }
  }
  return nodes;
}

function list(lines, names, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(marker);
  const items = [];
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent.length + 1) items.push([match[3]]);
    else items.at(-1).push(line.slice(Math.min(line.length - line.trimStart().length, indent.length + (ordered ? 3 : 2))));
  }
  return h(ordered ? "ol" : "ul", { start: ordered ? Number.parseInt(marker, 10) : null, dir: "auto" }, items.map(([first, ...rest]) => {
    const task = /^\[( |x|X)\]\s+(.*)$/.exec(first);
    const head = task ? [h("span", { class: "task", role: "img", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐" : "☑"), " ", inline(task[2], names)] : inline(first, names);
    return h("li", { class: task ? "task-item" : null }, head, rest.some((text) => text.trim()) ? blocks(rest, names, depth + 1) : null);
  }));
}

function cells(row) {
  return row.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(head, rule, rows, names) {
  const align = cells(rule).map((cell) => (/^:.*:$/.test(cell) ? "center" : cell.endsWith(":") ? "right" : null));
  const row = (source, tag) => h("tr", null, cells(source).map((cell, at) => h(tag, { class: align[at] ? `align-${align[at]}` : null, scope: tag === "th" ? "col" : null, dir: "auto" }, inline(cell, names))));
  return h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    h("table", null, h("thead", null, row(head, "th")), h("tbody", null, rows.map((source) => row(source, "td")))));
}

const INLINE = [
  [/^\\([\\`*_{}[\]()#+\-.!~|<>])/, (m) => m[1]],
  [/^(`+)([^`](?:.*?[^`])?)\1(?!`)/, (m) => h("code", null, m[2].replace(/^ (.+) $/, "$1"))],
  [/^!\[([^\]]*)\]\(([^()\s]+)[^)]*\)/, (m) => h("span", { class: "image-inline" }, link(m[2], m[1] || "image"))],
  [/^\[((?:[^[\]]|\[[^\]]*\])+)\]\(<?((?:[^()\s<>]|\([^()\s]*\))+)>?(?:\s+"[^"]*")?\)/, (m, names) => link(m[2], inline(m[1], names))],
  [/^<@([UW][A-Z0-9]+)(?:\|[^>]*)?>/, (m, names) => mention(m[1], names)],
  [/^<#([CG][A-Z0-9]+)(?:\|[^>]*)?>/, (m, names) => channelLink(m[1], names)],
  [/^<(https?:\/\/[^\s>|]+)(?:\|([^>]*))?>/, (m) => link(m[1], m[2] || m[1])],
  [/^(\*\*\*|___)(?=\S)(.+?)(?<=\S)\1/, (m, names) => h("strong", null, h("em", null, inline(m[2], names)))],
  [/^\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\*)/, (m, names) => h("strong", null, inline(m[1], names))],
  [/^~~(?=\S)(.+?)(?<=\S)~~/, (m, names) => h("s", null, inline(m[1], names))],
  [/^\*(?=\S)([^*]+?)(?<=\S)\*(?!\*)/, (m, names) => h("em", null, inline(m[1], names))],
  [/^:([a-z0-9_+-]+):/, (m) => (emoji(m[1]) ? emojiNode(m[1]) : m[0])],
];
const AT_WORD_START = [
  [/^__(?=\S)(.+?)(?<=\S)__(?![\p{L}\p{N}_])/u, (m, names) => h("strong", null, inline(m[1], names))],
  [/^_(?=\S)([^_]+?)(?<=\S)_(?![\p{L}\p{N}_])/u, (m, names) => h("em", null, inline(m[1], names))],
  [/^https?:\/\/[^\s<>"]*[^\s<>".,;:!?)\]}'*_~]/, (m) => link(m[0])],
];

function inline(text, names) {
  const nodes = [];
  let plain = "";
  for (let i = 0; i < text.length;) {
    const rest = text.slice(i);
    let found = null;
    if (/^[\\`![<*_~:h]/.test(rest)) {
      const rules = i && /[\p{L}\p{N}]/u.test(text[i - 1]) ? INLINE : [...INLINE, ...AT_WORD_START];
      for (const [pattern, build] of rules) {
        const match = pattern.exec(rest);
        if (match) { found = [match[0].length, build(match, names)]; break; }
      }
    }
    if (found) {
      if (plain) nodes.push(plain);
      plain = "";
      nodes.push(found[1]);
      i += found[0];
    } else { plain += rest[0]; i += 1; }
  }
  if (plain) nodes.push(plain);
  return nodes;
}
