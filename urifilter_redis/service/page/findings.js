// The doctor's findings on Redis. Each can be hidden for a day, in this browser.

import { make, part, resize, write } from "./dom.js";
import { plural } from "./figures.js";

const HIDDEN = "urifilter-hidden"; // the key in localStorage: until when each finding is hidden, ms
const A_DAY = 86_400_000; // ms

// Figures in the text change; a finding that gets worse is another one.
const keyOf = ({ level, subject }) => `${level} ${subject}`;

let shown = [];

const hidden = () => {
  try {
    return JSON.parse(localStorage.getItem(HIDDEN)) ?? {};
  } catch {
    return {};
  }
};

/** Show the findings that are neither "ok" nor hidden. */
export function showFindings(findings) {
  shown = findings.filter(({ level }) => level !== "ok");
  const until = hidden();
  const open = shown.filter((each) => !(until[keyOf(each)] > Date.now()));
  resize(part("findings"), open.length, makeFinding);
  open.forEach((each, place) => {
    const item = part("findings").children[place];
    const [title, text, button] = item.children;
    item.className = each.level;
    write(title, `Redis, ${each.subject}:`);
    write(text, each.text);
    button.value = keyOf(each);
    button.ariaLabel = `Hide for a day: ${each.subject}`;
  });
  part("findings").hidden = open.length === 0;
  part("hidden-findings").hidden = open.length === shown.length;
  write(part("hidden-findings").firstElementChild, `${plural(shown.length - open.length, "finding")} hidden.`);
}

function makeFinding() {
  const button = make("button", { type: "button", class: "link" }, "Hide for a day");
  return make("li", {}, make("b"), " ", make("span"), " ", button);
}

function keep(until) {
  localStorage.setItem(HIDDEN, JSON.stringify(until));
  showFindings(shown);
}

part("findings").addEventListener("click", ({ target }) => {
  if (target.value) keep({ ...hidden(), [target.value]: Date.now() + A_DAY });
});
part("show-findings").addEventListener("click", () => keep({}));
