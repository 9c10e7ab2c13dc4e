// The page: it asks for what its address names, one request at a time, while it is visible.

import { showAccess } from "./access.js";
import { ACTED, showActions, takeNotice } from "./actions.js";
import { ask, askForAll, measure, token } from "./api.js";
import { part, write } from "./dom.js";
import { bytes, plural, span } from "./figures.js";
import { showFilter } from "./filter.js";
import { showFindings } from "./findings.js";
import "./making.js";
import { searchAsAddressed, showOverview } from "./overview.js";

const POLL_EVERY = 2000; // ms

const TOKENS = "#/tokens";

// Refusals that say that a filter is not there, or not whole: its old figures are of no use.
const GONE = [403, 404, 409, 422];
const NOT_WHOLE = "slice_lost";

const page = { asking: false, again: false, heard: "", access: "", moved: false };

/** Return the address without what is searched for. */
const place = () => location.hash.split("?")[0];

/** Return the name of the filter in the address; null: it names none. */
function named() {
  const found = /^#\/filters\/(.+)$/.exec(location.hash);
  try {
    return found && decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

/** Return the functions that ask for what the address names, and that show the answer. */
function wanted() {
  if (location.hash === TOKENS) return [() => ask("access"), showTokens];
  const name = named();
  return name === null ? [askForAll, showAll] : [() => ask(`filters/${encodeURIComponent(name)}/detail`), showOne];
}

async function poll() {
  if (document.hidden || page.asking || !part("token-form").hidden) return;
  page.asking = true;
  page.again = false;
  const asked = place();
  const [askForIt, showAnswer] = wanted();
  try {
    const told = await askForIt();
    if (asked === place()) show(showAnswer, told);
  } catch (error) {
    if (asked === place()) fail(error);
  }
  page.asking = false;
  if (page.again) poll();
}

function show(showAnswer, told) {
  page.heard = new Date().toLocaleTimeString("en-GB");
  part("forget-token").hidden = token.get() === null;
  showAnswer(told);
  document.body.classList.remove("stale");
  write(part("banner"), "");
}

function showAll(told) {
  const isEmpty = told.filters.length === 0;
  page.access = told.access;
  reveal(isEmpty ? "none" : "overview", "doctor", "status", ...(told.access === "admin" ? ["making"] : []));
  const ofAll = told.service !== null;
  part("to-metrics").hidden = !ofAll;
  part("to-tokens").hidden = !told.service?.has_tokens;
  write(part("none-title"), ofAll ? "There is no filter yet" : "There is no filter for this token");
  part("none-help").hidden = !ofAll;
  if (!isEmpty) showOverview(told);
  showStatus(told);
}

function showOne(told) {
  page.access = told.access;
  reveal("filter");
  part("known").hidden = false;
  write(part("gone"), "");
  showFilter(told);
}

function showTokens(told) {
  reveal("access");
  showAccess(told);
}

/** Say why there is no answer; old figures turn grey. */
function fail(error) {
  const name = named();
  if (error.status === 401) {
    wantToken();
    return;
  }
  if (name !== null && (GONE.includes(error.status) || error.code === NOT_WHOLE)) {
    reveal("filter");
    showActions(name, error.status === 403 ? "" : page.access);
    part("known").hidden = true;
    write(part("kind"), "");
    write(part("gone"), error.message);
    return;
  }
  document.body.classList.add("stale");
  write(part("banner"), `${error.message}.${page.heard ? ` The figures are from ${page.heard}.` : ""}`);
}

function reveal(...ids) {
  for (const section of document.querySelectorAll("main > section")) section.hidden = !ids.includes(section.id);
  part("token-form").hidden = true;
  if (page.moved && ids.length > 0) moveFocus(ids[0]);
}

/** Put the focus on the heading of what a link has led to, where screen readers and the Tab key then go on. */
function moveFocus(id) {
  page.moved = false;
  const heading = part(id).querySelector("h2");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

function showStatus({ redis, service, latency }) {
  part("status").hidden = redis === null;
  if (redis === null) return;
  const masters = redis.masters.map(({ name, version, memory, limit, uptime, persistence }) => {
    const room = limit ? `${bytes(memory)} of ${bytes(limit)}` : `${bytes(memory)}, no limit`;
    return [name, version, room, persistence, `up ${span(uptime)}`].filter(Boolean).join(" · ");
  });
  const ours = `urifilter ${service.version} · ${plural(service.workers, "worker")} · up ${span(service.uptime)}`;
  write(part("servers"), [...masters, `a command takes ${(1000 * latency).toFixed(1)} ms`, ours].join(" — "));
  showFindings(redis.findings);
}

// --- The address

function go() {
  const name = named();
  const title = location.hash === TOKENS ? "Tokens" : name;
  document.title = title === null ? "urifilter" : `${title} – urifilter`;
  write(part("name"), name ?? "");
  write(part("notice"), takeNotice());
  if (title === null) searchAsAddressed();
  if (part("token-form").hidden && page.heard) {
    reveal();
    page.moved = true;
    scrollTo(0, 0);
  }
  page.again = page.asking; // the answer under way is about another address
  poll();
}

addEventListener("hashchange", go);

// --- The token

function wantToken() {
  reveal();
  part("forget-token").hidden = true;
  write(part("token-error"), token.get() === null ? "" : "Wrong token: the service does not know it.");
  token.forget();
  part("token-form").hidden = false;
  part("token").focus();
}

part("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(part("token").value);
  part("token-form").hidden = true;
  poll();
});

part("forget-token").addEventListener("click", () => {
  token.forget();
  location.reload();
});

// A browser that follows a link sends no token, so the metrics are asked for and shown as a document of this tab.
part("to-metrics").addEventListener("click", async (event) => {
  if (token.get() === null) return;
  event.preventDefault();
  try {
    location.href = URL.createObjectURL(new Blob([await measure()], { type: "text/plain" }));
  } catch (error) {
    write(part("banner"), error.message);
  }
});

// --- Polling

go();
setInterval(poll, POLL_EVERY);
for (const event of ["visibilitychange", ACTED]) document.addEventListener(event, poll);
