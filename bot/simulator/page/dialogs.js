// Confirm dialogs and toasts.

import { h, icon } from "./dom.js";
import { plainText, textObject } from "./mrkdwn.js";

/** Ask as a Block Kit confirm object says; resolves to whether the person confirmed. */
export function confirmDialog(confirm, names) {
  return new Promise((resolve) => {
    let answer = false;
    const say = (value) => () => { answer = value; dialog.close(); };
    const deny = h("button", { class: "button", type: "button", testid: "confirm-deny", onclick: say(false) }, plainText(confirm.deny) || "Cancel");
    const dialog = h("dialog", { class: "confirm", testid: "confirm", "aria-labelledby": "confirm-title" },
      h("h2", { id: "confirm-title", dir: "auto" }, plainText(confirm.title) || "Are you sure?"),
      h("div", { class: "confirm-text" }, textObject(confirm.text, names)),
      h("footer", null, deny, h("button", { class: `button ${confirm.style === "danger" ? "danger" : "primary"} solid`, type: "button", testid: "confirm-ok", onclick: say(true) }, plainText(confirm.confirm) || "Yes")));
    const opener = document.activeElement;
    dialog.addEventListener("close", () => { dialog.remove(); if (opener?.isConnected) opener.focus(); resolve(answer); });
    document.body.append(dialog);
    dialog.showModal();
    deny.focus();
  });
}

/** A short note at the foot of the window. Kinds: "note", "bad". */
export function toast(text, kind = "note") {
  const shelf = document.getElementById("toasts");
  const node = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status", testid: "toast" },
    kind === "bad" ? icon("warning", 16) : null, h("span", { dir: "auto" }, text),
    h("button", { class: "icon-button", type: "button", "aria-label": "Dismiss", onclick: () => node.remove() }, icon("close", 14)));
  shelf.append(node);
  while (shelf.children.length > 3) shelf.firstElementChild.remove();
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 5000);
}
