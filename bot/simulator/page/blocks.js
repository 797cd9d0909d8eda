// Block Kit blocks into elements. Unknown kinds are named in place rather than dropped, so that what a bot
// sends is never silently invisible.

import { h, icon } from "./dom.js";
import { plainText, textObject } from "./mrkdwn.js";
import { markdown } from "./markdown.js";
import { richText } from "./richtext.js";
import { interactive } from "./inputs.js";

/** Draw one block. See inputs.js for `ctx`. */
export function drawBlock(block, ctx) {
  const body = drawKnown(block, ctx) ?? h("div", { class: "unknown" }, `A "${block.type}" block, which this page does not draw`);
  body.classList.add("block", `block-${block.type}`);
  if (block.block_id) body.dataset.blockId = block.block_id;
  return body;
}

/** One block that cannot be drawn must not take the page with it: it is named in its place. */
function drawKnown(block, ctx) {
  try { return Object.hasOwn(BLOCKS, block.type) ? BLOCKS[block.type](block, ctx) : null; } catch (error) {
    console.warn("block not drawn", block, error);
    return null;
  }
}

export const drawBlocks = (blocks, ctx) => (blocks ?? []).map((block) => drawBlock(block, ctx));

const BLOCKS = {
  header: (block) => h("h3", { dir: "auto" }, plainText(block.text)),
  divider: () => h("hr"),
  section,
  rich_text: (block, ctx) => richText(block, ctx.names),
  markdown: (block, ctx) => h("div", { class: "markdown" }, markdown(block.text ?? "", ctx.names)),
  context: (block, ctx) => h("div", null, (block.elements ?? []).map((el) => (el.type === "image" ? picture(el, true) : h("span", { class: "context-item" }, textObject(el, ctx.names))))),
  actions: (block, ctx) => h("div", { role: "group", "aria-label": "Actions" }, (block.elements ?? []).map((el) => interactive(block.block_id, el, ctx))),
  context_actions: (block, ctx) => h("div", { role: "group", "aria-label": "Actions" }, (block.elements ?? []).map((el) => interactive(block.block_id, el, ctx))),
  image: (block) => h("figure", null, block.title ? h("figcaption", null, plainText(block.title)) : null, picture(block)),
  video: (block) => h("figure", null, h("figcaption", null, plainText(block.title)), picture(block)),
  input,
  table,
  alert: (block, ctx) => h("div", { class: `level-${block.level ?? "default"}`, role: block.level === "error" ? "alert" : "note" },
    icon(block.level === "warning" || block.level === "error" ? "warning" : block.level === "success" ? "check" : "info", 18), textObject(block.text, ctx.names)),
  container,
  card,
  carousel: (block, ctx) => h("div", { role: "group", tabindex: "0", "aria-label": "Cards" }, (block.elements ?? []).map((el) => drawBlock(el, ctx))),
  plan: (block, ctx) => h("div", null, h("strong", { dir: "auto" }, plainText(block.title)), (block.tasks ?? []).map((task) => drawBlock({ type: "task_card", ...task }, ctx))),
  task_card: taskCard,
  file: (block) => h("div", { class: "placeholder" }, `File ${block.external_id ?? ""}`),
};

function section(block, ctx) {
  const text = block.text ? h("div", { class: "section-text" }, textObject(block.text, ctx.names)) : null;
  const fields = block.fields?.length ? h("div", { class: "fields" }, block.fields.map((field) => h("div", { class: "field-cell" }, textObject(field, ctx.names)))) : null;
  const accessory = block.accessory ? h("div", { class: "accessory" }, block.accessory.type === "image" ? picture(block.accessory) : interactive(block.block_id, block.accessory, ctx)) : null;
  return h("div", { class: accessory ? "has-accessory" : "" }, h("div", { class: "section-main" }, text, fields), accessory);
}

/** Images are not fetched: nothing on this page leaves the machine. Their words are shown instead. */
function picture(element, small = false) {
  const alt = element.alt_text || "Image";
  return h("span", { class: small ? "placeholder small" : "placeholder", role: "img", "aria-label": alt, title: element.image_url ?? element.slack_file?.url ?? "" }, icon("image", small ? 14 : 20), small ? null : h("span", { dir: "auto" }, alt));
}

function input(block, ctx) {
  const id = `${ctx.scope}-${block.block_id}`;
  const error = ctx.errors?.[block.block_id];
  const described = [block.hint ? `${id}-hint` : null, error ? `${id}-error` : null].filter(Boolean).join(" ") || null;
  const field = { input: true, dispatch: block.dispatch_action === true, required: !block.optional, labelledby: `${id}-label`, describedby: described, invalid: Boolean(error) };
  return h("div", { class: error ? "invalid" : "" },
    h("div", { class: "input-label", id: `${id}-label`, dir: "auto" }, plainText(block.label), block.optional ? h("span", { class: "optional" }, " (optional)") : null),
    interactive(block.block_id, block.element, ctx, field),
    block.hint ? h("div", { class: "input-hint", id: `${id}-hint`, dir: "auto" }, plainText(block.hint)) : null,
    error ? h("div", { class: "input-error", id: `${id}-error`, role: "alert", testid: `error-${block.block_id}` }, icon("warning", 15), error) : null);
}

function cell(content, ctx) {
  if (content?.type === "rich_text") return richText(content, ctx.names);
  return String(content?.text ?? content?.value ?? content?.number ?? "");
}

const brief = (content) => content?.type !== "rich_text" && cell(content).length <= 12;

function table(block, ctx) {
  const settings = block.column_settings ?? [];
  const kind = (at) => [settings[at]?.align ? `align-${settings[at].align}` : "", settings[at]?.is_wrapped ? "wrapped" : ""].join(" ");
  const row = (cells, tag) => h("tr", null, cells.map((content, at) => h(tag, { class: `${kind(at)}${brief(content) ? " brief" : ""}`, scope: tag === "th" ? "col" : null, dir: "auto" }, cell(content, ctx))));
  const [head, ...rest] = block.rows ?? [];
  return h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" }, h("table", null, head ? h("thead", null, row(head, "th")) : null, h("tbody", null, rest.map((cells) => row(cells, "td")))));
}

function container(block, ctx) {
  const title = block.rich_text_title ? richText(block.rich_text_title, ctx.names) : h("strong", { dir: "auto" }, plainText(block.title));
  const head = [block.icon ? picture(block.icon, true) : null, h("span", { class: "container-title" }, title, block.subtitle ? h("small", null, textObject(block.subtitle, ctx.names)) : null)];
  const body = h("div", { class: "container-body" }, drawBlocks(block.child_blocks, ctx));
  const width = `container width-${block.width ?? "standard"} ${block.has_header_divider ? "divided" : ""}`;
  if (!block.is_collapsible) return h("div", { class: width }, h("div", { class: "container-head" }, head), body);
  return h("details", { class: width, open: !block.default_collapsed }, h("summary", { class: "container-head" }, head, icon("down", 16)), body);
}

function card(block, ctx) {
  return h("div", null, block.hero_image ? picture(block.hero_image) : null,
    h("div", { class: "container-head" }, block.icon ? picture(block.icon, true) : null, h("span", { class: "container-title" }, h("strong", null, textObject(block.title, ctx.names)), block.subtitle ? h("small", null, textObject(block.subtitle, ctx.names)) : null)),
    block.body ? textObject(block.body, ctx.names) : null,
    block.actions?.length ? h("div", { class: "block-actions" }, block.actions.map((el) => interactive(block.block_id, el, ctx))) : null);
}

const TASK = { pending: "waiting", in_progress: "working", complete: "done", error: "failed" };

function taskCard(block, ctx) {
  const status = block.status ?? "pending";
  const mark = status === "complete" ? icon("check", 15) : status === "error" ? icon("warning", 15) : h("span", { class: status === "in_progress" ? "spinner" : "dot" });
  const long = (part) => (!part ? null : typeof part === "string" ? h("div", { dir: "auto" }, part) : richText(part, ctx.names));
  return h("div", { class: `task-${status}` }, h("span", { class: "task-mark", role: "img", "aria-label": TASK[status] }, mark), h("div", null, h("span", { dir: "auto" }, plainText(block.title)), long(block.details), long(block.output)));
}
