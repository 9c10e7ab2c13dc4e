// What is in flight in a filter and the dead letters, in pages. A token must allow writing to see the items.

import { ACTED } from "./actions.js";
import { ask, askUntilDone } from "./api.js";
import { make, part, resize, write } from "./dom.js";
import { ago, plural, span, whole } from "./figures.js";
import { confirmed } from "./question.js";

const A_PAGE = 20; // items
const LONGEST = 200; // characters of a text

const shorten = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

function textOf({ item, item_base64: encoded }) {
  if (encoded !== undefined) return shorten(`base64: ${encoded}`);
  return shorten(typeof item === "string" ? item : JSON.stringify(item));
}

/** Return the body that names an item. */
const bodyOf = ({ item, item_base64: encoded }) => (encoded === undefined ? { items: [item] } : { items: [encoded], base64: [0] });

// By the name in the service: each list's place in the page, and its texts behind the item's.
const LISTS = {
  in_flight: {
    id: "in-flight",
    texts: ({ holder, failures, lapses, lease }) => [holder, whole(failures), whole(lapses), lease ? span(lease) : "over"],
  },
  dead_letters: {
    id: "dead-letters",
    texts: ({ reason, failures, lapses, at }) => [shorten(reason), whole(failures), whole(lapses), ago(at, shown.now)],
  },
};

let shown = {};

/** Show the lists of a filter that are open, to a token that may claim. */
export function showClaims({ filter: name, access, now, info }) {
  if (shown.name !== name) reset();
  Object.assign(shown, { name, now });
  for (const [each, list] of Object.entries(LISTS)) {
    part(list.id).hidden = access === "read" || !info.claims;
    load(each);
  }
}

function reset() {
  shown = {};
  tell("");
  for (const list of Object.values(LISTS)) {
    Object.assign(list, { places: [""], items: [], next: "" });
    part(list.id).open = false;
    showList(list);
  }
}

/** Ask for the page of a list that is looked at, one request at a time. */
async function load(each) {
  const list = LISTS[each];
  const { name } = shown;
  if (list.busy || !part(list.id).open || part(list.id).hidden) return;
  list.busy = true;
  const place = list.places.at(-1);
  try {
    const told = await ask(`${pathOf(name, each)}?limit=${A_PAGE}${place && `&after=${place}`}`);
    if (name === shown.name && place === list.places.at(-1)) {
      Object.assign(list, { items: told[each], next: told.next ?? "" });
      showList(list);
    }
  } catch (error) {
    if (name === shown.name) tell(error.message, "danger");
  }
  list.busy = false;
  if (place !== list.places.at(-1)) load(each);
}

const pathOf = (name, last) => `filters/${encodeURIComponent(name)}/${last}`;

function showList({ id, items, places, next, texts }) {
  const [body] = part(id).querySelector("table").tBodies;
  const [, ...titles] = part(id).querySelector("thead tr").cells;
  resize(body, items.length, () => {
    const cells = titles.map(({ className }) => make("td", { class: className }));
    return make("tr", {}, make("th", { scope: "row" }), ...cells);
  });
  items.forEach((each, place) => {
    const { cells } = body.rows[place];
    [textOf(each), ...texts(each)].forEach((text, column) => write(cells[column], text));
    if (id === "dead-letters") showRetry(cells[cells.length - 1], textOf(each));
  });
  const [back, more] = part(id).querySelectorAll("nav button");
  back.disabled = places.length === 1;
  more.disabled = next === "";
  part(id).querySelector("nav").hidden = places.length === 1 && next === "";
}

function showRetry(cell, text) {
  if (!cell.firstElementChild) cell.append(make("button", { type: "button", class: "link" }, "Retry"));
  cell.firstElementChild.ariaLabel = `Retry ${text}`;
}

function tell(text, kind = "") {
  write(part("retry-outcome"), text);
  part("retry-outcome").className = kind;
}

async function retry(title, body) {
  const { name } = shown;
  const text = "Crawlers get it by reclaim, and its failures count from 0.";
  if ((await confirmed({ title, text, button: "Retry" })) === null) return;
  try {
    const { offered } = await askUntilDone(pathOf(name, "retry_dead_letters"), body);
    if (name === shown.name) tell(`${plural(offered, "item")} offered once more`);
  } catch (error) {
    if (name === shown.name) tell(error.message, "danger");
  }
  document.dispatchEvent(new Event(ACTED));
}

for (const [each, list] of Object.entries(LISTS)) {
  const [back, more] = part(list.id).querySelectorAll("nav button");
  part(list.id).addEventListener("toggle", () => load(each));
  back.addEventListener("click", () => {
    list.places.pop();
    load(each);
  });
  more.addEventListener("click", () => {
    list.places.push(list.next);
    more.disabled = true;
    load(each);
  });
}

part("dead-letters").querySelector("tbody").addEventListener("click", ({ target }) => {
  if (target.tagName !== "BUTTON") return;
  const item = LISTS.dead_letters.items[target.closest("tr").sectionRowIndex];
  retry(`Retry ${textOf(item)}?`, bodyOf(item));
});
part("retry-all").addEventListener("click", () => retry(`Retry all dead letters in ${shown.name}?`, {}));
