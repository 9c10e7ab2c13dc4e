// All filters in a table that can be searched and sorted, problems first.

import { make, part, resize, write } from "./dom.js";
import { ago, bytes, count, due, percent, plural, shortRate, span, speed, speedUnit, whole, words } from "./figures.js";

const A_PAGE = 30; // rows: a page of them is at most 2,000 pixels high on a phone

const CROWDED = ["near_capacity", "over_capacity", "error_rate"]; // problems that the column "Full" shows

const LEVELS = { danger: 2, note: 1 };
const badness = ({ problems }) => Math.max(0, ...problems.map(({ level }) => LEVELS[level] ?? 0));
const known = (value, figure) => (value === null || value === undefined ? "" : figure(value));

const fullOf = ({ full, retention }) => (retention === "growing" ? "grows" : known(full, percent));
const keepsCheckpoints = ({ archive }) => Boolean(archive) && archive !== "redis";

// Each column: its title, its text, the unit behind that where there is no title, and the value by which it is sorted;
// `first` is the order of the first click.
const COLUMNS = [
  {
    id: "problems", title: "Problems",
    text: ({ problems }) => problems.map(({ code }) => words(code)).join(", "),
    by: badness,
    first: -1,
  },
  { id: "name", title: "Filter", text: ({ name }) => name, by: ({ name }) => name, first: 1 },
  { id: "retention", title: "Retention", wide: true, text: kindOf, by: kindOf, first: 1 },
  {
    id: "items", title: "Items", number: true,
    text: ({ items }) => known(items, count),
    by: ({ items }) => items,
    first: -1,
  },
  { id: "full", title: "Full", number: true, text: fullOf, by: ({ full }) => full, first: -1 },
  {
    id: "full_in", title: "Full in", wide: true, number: true,
    text: ({ full_in: left }) => known(left, (s) => (s ? span(s) : "now")),
    by: ({ full_in: left }) => left,
    first: 1,
  },
  {
    id: "speed", title: "New a second", number: true,
    text: (row) => known(row.items, () => speed(row.speed)),
    unit: (row) => speedUnit(row.speed),
    by: (row) => row.speed,
    first: -1,
  },
  {
    id: "rate", title: "Error rate now", wide: true, number: true,
    text: (row) => known(row.error_rate_now, shortRate),
    by: (row) => row.error_rate_now,
    first: -1,
  },
  {
    id: "in_flight", title: "In flight", wide: true, number: true,
    text: ({ claims }) => known(claims, (c) => count(c.in_flight)),
    by: ({ claims }) => claims?.in_flight,
    first: -1,
  },
  {
    id: "rotation", title: "Rotation", number: true,
    text: (row, now) => known(row.next_rotation, (time) => due(time, now)),
    by: (row) => row.next_rotation,
    first: 1,
  },
  {
    id: "checkpoint", title: "Checkpoint", wide: true, number: true,
    text: checkpointOf,
    by: (row) => row.checkpointed,
    first: 1,
  },
  {
    id: "memory", title: "Memory", wide: true, number: true,
    text: ({ memory }) => known(memory, bytes),
    by: ({ memory }) => memory,
    first: -1,
  },
];

function kindOf({ retention, slices, period }) {
  return retention ? [retention, slices && `${slices} × ${period}`].filter(Boolean).join(" ") : "";
}

function checkpointOf(row, now) {
  return keepsCheckpoints(row) ? ago(row.checkpointed, now) : "";
}

const state = { rows: [], now: 0, column: "problems", order: -1, page: 0, problem: "" };

/** Show what the service tells of all filters. */
export function showOverview({ filters, now, redis }) {
  Object.assign(state, { rows: filters, now });
  showProblems(filters);
  showTotals(filters, redis?.masters ?? []);
  arrange();
}

/** Show what all filters take and do together, and how full the memory of the fullest server is. */
function showTotals(rows, masters) {
  const sum = (of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);
  const total = sum((row) => row.speed);
  const limited = masters.filter(({ limit }) => limit).toSorted((one, other) => other.memory / other.limit - one.memory / one.limit);
  const [fullest] = limited;
  const which = masters.length > 1 ? `the fullest of ${whole(masters.length)} masters` : "Redis";
  const share = fullest && `${which} uses ${percent(fullest.memory / fullest.limit)} of its maxmemory of ${bytes(fullest.limit)}`;
  const texts = [
    `new items: ${speed(total)}${speedUnit(total)}`,
    `memory: ${bytes(sum((row) => row.memory))}`,
    fullest ? share : masters.length > 0 && "no maxmemory",
  ];
  write(part("totals"), texts.filter(Boolean).join(" · "));
}

/** Search for what the address says: `#/?search=…`. */
export function searchAsAddressed() {
  const said = new URLSearchParams(location.hash.split("?")[1]).get("search") ?? "";
  if (part("search").value !== said) part("search").value = said;
  tellAddress();
  state.page = 0;
}

/** Let the links to this list lead to what is searched for. */
function tellAddress() {
  const text = part("search").value;
  const address = text ? `#/?${new URLSearchParams({ search: text })}` : "#/";
  for (const link of document.querySelectorAll("a.to-list")) link.href = address;
  return address;
}

function showProblems(rows) {
  const bad = rows.filter(({ problems }) => problems.length);
  const counts = new Map();
  for (const { problems } of bad) {
    for (const { code, level } of problems) {
      const before = counts.get(code) ?? { level, number: 0 };
      counts.set(code, { level, number: before.number + 1 });
    }
  }
  const some = `${whole(bad.length)} of ${plural(rows.length, "filter")} ${bad.length === 1 ? "has" : "have"} problems`;
  const none = rows.length === 1 ? "The filter has no problem" : `No problem in ${plural(rows.length, "filter")}`;
  write(part("problems-title"), bad.length ? some : none);
  if (state.problem && !counts.has(state.problem)) state.problem = "";
  const kinds = [...counts].sort(([, one], [, other]) => LEVELS[other.level] - LEVELS[one.level] || other.number - one.number);
  resize(part("kinds"), kinds.length, () => make("button", { type: "button" }));
  kinds.forEach(([code, { level, number }], place) => {
    const chip = part("kinds").children[place];
    chip.value = code;
    chip.className = level;
    chip.ariaPressed = String(state.problem === code);
    write(chip, `${whole(number)} ${words(code)}`);
  });
}

/** Show the rows that are searched for, in their order. */
function arrange() {
  const found = sorted(state.rows.filter(isWanted));
  const pages = Math.max(1, Math.ceil(found.length / A_PAGE));
  state.page = Math.min(state.page, pages - 1);
  const begin = state.page * A_PAGE;
  showRows(found.slice(begin, begin + A_PAGE));
  write(part("count"), found.length === state.rows.length ? "" : `${whole(found.length)} of ${whole(state.rows.length)}`);
  part("pager").hidden = pages === 1;
  part("back").disabled = state.page === 0;
  part("more").disabled = state.page === pages - 1;
  write(part("place"), `${whole(begin + 1)} to ${whole(Math.min(begin + A_PAGE, found.length))} of ${whole(found.length)}`);
  for (const { id } of COLUMNS) {
    const direction = state.order > 0 ? "ascending" : "descending";
    part(`column-${id}`).ariaSort = id === state.column ? direction : "none";
  }
  part("sort").value = state.column;
}

function isWanted(row) {
  if (state.problem && !row.problems.some(({ code }) => code === state.problem)) return false;
  const text = [row.name, kindOf(row), row.layout, ...row.problems.map(({ code }) => words(code))].join(" ").toLowerCase();
  return part("search").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Sort by the column, then by name; what is unknown comes last. */
function sorted(rows) {
  const { by } = COLUMNS.find(({ id }) => id === state.column);
  return rows.toSorted((one, other) => {
    const [a, b] = [by(one) ?? null, by(other) ?? null];
    if (a !== b) {
      if (a === null || b === null) return a === null ? 1 : -1;
      return (a < b ? -1 : 1) * state.order;
    }
    return one.name < other.name ? -1 : 1;
  });
}

function showRows(rows) {
  const body = part("filters").tBodies[0];
  resize(body, rows.length, makeRow);
  rows.forEach((row, place) => {
    const line = body.children[place];
    const isCrowded = row.problems.some(({ code }) => CROWDED.includes(code));
    line.className = [["", "note", "danger"][badness(row)], isCrowded && "crowded"].filter(Boolean).join(" ");
    COLUMNS.forEach(({ id, text, unit }, column) => {
      const cell = line.children[column];
      if (id === "name") {
        cell.firstElementChild.href = `#/filters/${encodeURIComponent(row.name)}`;
        write(cell.firstElementChild, row.name);
      } else write(cell, text(row, state.now));
      if (unit) cell.dataset.unit = unit(row);
    });
    line.children[0].title = row.problems.map((each) => each.text).join("; ");
  });
}

function makeRow() {
  const cells = COLUMNS.map(({ id, wide, number }) => {
    const kinds = [id, wide && "wide", number && "number"].filter(Boolean).join(" ");
    return id === "name" ? make("th", { scope: "row", class: kinds }, make("a")) : make("td", { class: kinds });
  });
  return make("tr", {}, ...cells);
}

// --- What the user chooses

function sortBy(column) {
  const { first } = COLUMNS.find(({ id }) => id === column);
  state.order = state.column === column ? -state.order : first;
  state.column = column;
  state.page = 0;
  arrange();
}

part("filters").tHead.rows[0].append(
  ...COLUMNS.map(({ id, title, wide, number }) => {
    const kinds = [id, wide && "wide", number && "number"].filter(Boolean).join(" ");
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => sortBy(id));
    return make("th", { id: `column-${id}`, scope: "col", class: kinds }, button);
  }),
);
part("sort").append(...COLUMNS.map(({ id, title }) => new Option(`Sort by ${title.toLowerCase()}`, id)));
part("sort").addEventListener("change", ({ target }) => {
  state.column = "";
  sortBy(target.value);
});
part("search").addEventListener("input", () => {
  history.replaceState(null, "", tellAddress());
  state.page = 0;
  arrange();
});
part("kinds").addEventListener("click", ({ target }) => {
  if (!target.value) return;
  state.problem = state.problem === target.value ? "" : target.value;
  state.page = 0;
  showProblems(state.rows);
  arrange();
});
for (const [id, step] of [["back", -1], ["more", 1]]) {
  part(id).addEventListener("click", () => {
    state.page += step;
    arrange();
    part("filters").scrollIntoView();
  });
}
