// A question to the user before something is changed.

import { part, write } from "./dom.js";

const dialog = part("question");
let isAccepted = () => true;

/** Ask; return the typed text, or null if the user leaves the question. `accepts` says whether the text will do. */
export function confirmed({ title, text, button, field = "", accepts = () => true }) {
  write(part("question-title"), title);
  write(part("question-text"), text);
  write(part("question-do"), button);
  write(part("reply-label"), field);
  part("reply").hidden = part("reply-label").hidden = field === "";
  part("reply").value = "";
  isAccepted = accepts;
  check();
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue ? typed() : null), { once: true });
  });
}

const typed = () => part("reply").value.trim();

function check() {
  part("question-do").disabled = !isAccepted(typed());
}

part("reply").addEventListener("input", check);
part("leave").addEventListener("click", () => dialog.close());
part("question-form").addEventListener("submit", (event) => {
  event.preventDefault();
  dialog.close("done");
});
addEventListener("hashchange", () => dialog.close());
