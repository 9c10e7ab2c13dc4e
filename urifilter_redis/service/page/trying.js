// The box in which URIs are tried. Each tool says whether its token must allow writing.

import { ask } from "./api.js";
import { make, part, write } from "./dom.js";
import { whole } from "./figures.js";

const TOOLS = [
  { command: "contains", label: "Check", writes: false, outcome: "new in" },
  { command: "insert", label: "Insert", writes: true, outcome: "new and inserted into" },
  { command: "forget", label: "Forget", writes: true, outcome: "forgotten in" },
];

let shown = {};

/** Show the tools for a filter that a token of this access may use. */
export function showTools(name, access) {
  if (shown.name === name && shown.access === access) return;
  if (shown.name !== name) clear();
  shown = { name, access };
  const allowed = TOOLS.filter(({ writes }) => !writes || access !== "read");
  const buttons = allowed.map(({ command, label, writes }) => {
    const attributes = { type: "submit", value: command, ...(writes && { class: "write" }) };
    return make("button", attributes, label);
  });
  buttons[0].title = "Ctrl+Enter";
  part("tools").replaceChildren(...buttons);
}

function clear() {
  part("answers").replaceChildren();
  showOutcome("", "");
}

/** Put an answer into words: an age, or whether the item was there. */
function inWords(answer) {
  if (typeof answer === "boolean") return answer ? "forgotten" : "was not there";
  if (answer < 0) return "in flight";
  return answer ? `seen (age ${answer})` : "new";
}

part("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { command, outcome } = TOOLS.find(({ command: each }) => each === event.submitter.value);
  const { name } = shown;
  const uris = part("uris").value.split("\n").map((line) => line.trim()).filter(Boolean);
  try {
    const { ages, was_there: wereThere } = await ask(`filters/${encodeURIComponent(name)}/${command}`, { items: uris });
    if (name === shown.name) showAnswers(uris, ages ?? wereThere, `${outcome} ${name}`);
  } catch (error) {
    clear();
    showOutcome(error.message, "danger");
  }
});

function showAnswers(uris, answers, outcome) {
  const lines = uris.map((uri, index) => {
    const attributes = answers[index] === 0 ? { class: "new" } : {};
    return make("li", attributes, make("b", {}, inWords(answers[index])), " ", make("span", {}, uri));
  });
  part("answers").replaceChildren(...lines);
  const counted = answers.filter((answer) => answer === 0 || answer === true).length;
  showOutcome(`${whole(counted)} of ${whole(answers.length)} ${outcome}`, "");
}

function showOutcome(text, kind) {
  write(part("outcome"), text);
  part("outcome").className = kind;
}

part("uris").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) part("try").requestSubmit(part("tools").children[0]);
});
