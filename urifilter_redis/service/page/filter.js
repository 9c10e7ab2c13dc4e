// The page of one filter.

import { showActions } from "./actions.js";
import { showClaims } from "./claims.js";
import { make, part, resize, write, writeList, writeProblems } from "./dom.js";
import { ago, bytes, count, due, oneIn, percent, plural, shortRate, span, speed, whole, words } from "./figures.js";
import { pastes } from "./pastes.js";
import { Plot } from "./plot.js";
import { showTools } from "./trying.js";

const SPANS = { hour: 3600, day: 86_400 };
const PLOTS = { speed: new Plot("New items a second", speed), fill: new Plot("Bits set", percent), error_rate: new Plot("Error rate", oneIn) };

let shown = { span: "hour", told: null };

/** Show what the service tells of a filter. */
export function showFilter(told) {
  shown.told = told;
  const { filter: name, row, info, now } = told;
  write(part("kind"), kindOf(info));
  writeProblems(part("filter-problems"), row.problems.map((each) => ({ ...each, title: words(each.code) })));
  showBar(part("bar"), info, row);
  writeList(part("figures"), figuresOf(told));
  showPlots();
  showSlices(part("slices").tBodies[0], info.live_slices, now);
  writeList(part("claims"), claimsOf(info.claims));
  showClaims(told);
  writeList(part("settings"), settingsOf(info, now));
  showRules(part("rules"), info.rules ?? []);
  showTools(name, told.access);
  showActions(name, told.access, info);
  showPastes(pastes(told));
}

function kindOf(info) {
  const parts = [
    info.retention,
    info.slices && `${info.slices} × ${info.period}`,
    info.write === "all" && "writes all",
    info.expire_after === "last-seen" && "last seen",
    info.layout,
    plural(info.shards, "shard"),
    info.phase !== "idle" && `${info.phase} …`,
  ];
  return parts.filter(Boolean).join(" · ");
}

const keepsCheckpoints = ({ archive }) => archive !== null && archive !== "redis";

function figuresOf({ row, info, now, measured }) {
  const left = row.full_in === null ? "full: not foreseen" : row.full_in ? `full in ${span(row.full_in)}` : "full";
  const share = row.items / row.capacity;
  const fullest = row.full > share ? `; the fullest slice: ${percent(row.full)}` : "";
  return [
    ["Items", whole(row.items), `${percent(share)} of ${whole(row.capacity)}${fullest}`],
    ["New items a second", speed(row.speed), row.retention === "growing" ? "grows" : left],
    ["Error rate now", oneIn(info.error_rate_now), `promised ${oneIn(info.error_rate)}`],
    ["Next rotation", due(info.next_rotation, now), info.period ? `every ${info.period}` : "nothing expires"],
    ["Last checkpoint", ago(info.checkpointed, now), keepsCheckpoints(info) ? info.archive : "no archive"],
    ["Memory", bytes(info.memory), `${percent(info.fill)} of bits set, ${span(now - measured)} ago`],
  ];
}

function claimsOf(claims) {
  if (!claims) return [["In flight", "–", "nobody has claimed"]];
  return [
    ["In flight", whole(claims.in_flight), plural(claims.holders, "living holder")],
    ["Lapsed", whole(claims.lapsed), claims.oldest_lapse === null ? "for anybody" : `the oldest ${span(claims.oldest_lapse)} ago`],
    ["Released", whole(claims.delayed), `not due yet; leases of ${span(claims.lease)}`],
    ["Dead letters", whole(claims.dead_letters), `${whole(claims.rejected)} rejected in all`],
  ];
}

function settingsOf(info, now) {
  const pairs = {
    Capacity: whole(info.capacity),
    "Error rate": oneIn(info.error_rate),
    "Rate at capacity": oneIn(info.error_rate_at_capacity),
    Layout: `${info.layout}, ${info.k} offsets`,
    Retention: [info.retention, info.slices && `${info.slices} slices of ${info.period}`].filter(Boolean).join(", "),
    Writes: info.write && `${info.write} slice${info.write === "all" ? "s" : ""}`,
    Expires: info.expire_after,
    Shards: whole(info.shards),
    Hash: info.hash,
    Normalize: info.normalize,
    Rules: info.rules && plural(info.rules.length, "rule"),
    Archive: info.archive ?? "none",
    Rotations: whole(info.epoch),
    Forgotten: whole(info.forgotten),
    Made: ago(info.created, now),
    Format: String(info.format),
    Uid: info.uid,
  };
  return Object.entries(pairs).filter(([, text]) => text);
}

function showRules(box, rules) {
  const list = box.lastElementChild;
  resize(list, rules.length, () => make("li", {}, make("b"), ": ", make("span")));
  rules.forEach(({ host, domain, ...effects }, place) => {
    const [where, what] = list.children[place].children;
    write(where, host ?? (domain ? `${domain} and below` : "all other hosts"));
    write(what, Object.entries(effects).map(effectOf).join("; ") || "no rule");
  });
  box.hidden = rules.length === 0;
}

function effectOf([field, value]) {
  return value === true ? field : `${field} ${[value].flat().join(", ")}`;
}

/** Show the items of each slice along the room for all, oldest and palest first. */
function showBar(box, info, { capacity, items }) {
  const [bar, label] = box.children;
  const isNew = ({ inserted }, index, all) => inserted - (info.write === "all" && index ? all[index - 1].inserted : 0);
  const held = info.live_slices.map(isNew).reverse();
  const length = Math.max(capacity, items);
  resize(bar, held.length, () => make("i"));
  held.forEach((some, place) => {
    bar.children[place].style.width = `${(100 * some) / length}%`;
    bar.children[place].style.opacity = 0.4 + (0.6 * (place + 1)) / held.length;
    bar.children[place].classList.toggle("over", info.live_slices.at(-1 - place).over_capacity);
  });
  box.style.setProperty("--capacity", capacity / length);
  write(label, `${info.retention === "growing" ? "room so far" : "capacity"}: ${count(capacity)}`);
}

function showSlices(body, slices, now) {
  resize(body, slices.length, makeSlice);
  slices.forEach((slice, index) => {
    const row = body.children[index];
    const texts = [
      slice.name,
      ago(slice.opened, now),
      count(slice.inserted),
      percent(slice.inserted / slice.capacity),
      percent(slice.fill),
      shortRate(slice.error_rate_now),
      bytes(slice.size),
    ];
    texts.forEach((text, place) => write(row.children[place], text));
    row.className = slice.over_capacity ? "danger" : "";
  });
}

function makeSlice() {
  const wide = { class: "number wide" };
  const number = { class: "number" };
  const cells = [wide, number, number, wide, number, wide].map((attributes) => make("td", attributes));
  return make("tr", {}, make("th", { scope: "row" }), ...cells);
}

// --- Plots

part("plots").append(...Object.values(PLOTS).map(({ node }) => node));

function showPlots() {
  const { told, span: chosen } = shown;
  const { at, ...columns } = told.plots[chosen];
  part("plots").hidden = at.length < 2; // a line needs two
  part("no-samples").hidden = !part("plots").hidden;
  for (const [name, plot] of Object.entries(PLOTS)) plot.show(at, columns[name], told.now - SPANS[chosen], told.now);
  const why = told.plots_refused && `Kept in the memory of one worker of this service only: ${told.plots_refused}`;
  write(part("plots-refused"), why);
}

for (const button of document.querySelectorAll("button.span")) {
  button.addEventListener("click", () => {
    shown.span = button.value;
    for (const each of document.querySelectorAll("button.span")) each.ariaPressed = String(each === button);
    if (shown.told) showPlots();
  });
}

// --- Lines to paste

function showPastes(lines) {
  resize(part("pastes"), lines.length, () => {
    const text = make("pre", { tabindex: "0" }, make("code"));
    const copy = make("button", { type: "button", class: "copy" }, "Copy");
    return make("div", {}, make("h4"), make("div", { class: "paste" }, text, copy));
  });
  lines.forEach(([title, text], place) => {
    const [heading, paste] = part("pastes").children[place].children;
    write(heading, title);
    write(paste.querySelector("code"), text);
    paste.querySelector("button").ariaLabel = `Copy: ${title}`;
  });
}
