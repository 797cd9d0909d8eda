// Faces and names: drawn initials, badges, the bot's mark.

import { h } from "./dom.js";

const HUES = [212, 158, 24, 338, 268, 190, 46, 8, 128, 292];

function hueOf(text) {
  let sum = 7;
  for (const char of text) sum = (sum * 31 + char.codePointAt(0)) >>> 0;
  return HUES[sum % HUES.length];
}

/** A square with coloured initials (the bot: its mark). */
export function avatar(person, size = "medium") {
  const name = person?.real_name || person?.name || "?";
  const initials = name.trim().split(/\s+/).slice(0, 2).map((word) => [...word][0]?.toUpperCase() ?? "").join("") || "?";
  const node = h("span", { class: `avatar ${size} ${person?.kind ?? ""}`, "aria-hidden": "true" }, person?.kind === "bot" ? "" : initials);
  if (/^#?[0-9a-f]{6}$/i.test(person?.color ?? "") && person.kind !== "bot") node.style.setProperty("--face", person.color.startsWith("#") ? person.color : `#${person.color}`);
  else node.style.setProperty("--face", `hsl(${hueOf(person?.id ?? name)} 42% 42%)`);
  if (person?.kind === "bot") node.append(h("i", { class: person.id === "USLACKBOT" ? "mark plain" : "mark" }));
  return node;
}

const BADGES = { guest: "Guest", external: "External", deactivated: "Deactivated", bot: "App" };

export const badge = (person) => (BADGES[person?.kind] ? h("span", { class: `badge ${person.kind}` }, BADGES[person.kind]) : null);
