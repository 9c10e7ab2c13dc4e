// The page: it asks for what its address names, one request at a time, while it is visible.

import { ask, token } from "./api.js";
import { part, write, writeProblems } from "./dom.js";
import { bytes, plural, span } from "./figures.js";
import { showFilter } from "./filter.js";
import { showOverview } from "./overview.js";

const POLL_EVERY = 2000; // ms

const page = { asking: false, again: false, heard: "" };

/** Return the name of the filter in the address; null: it names all filters. */
function named() {
  const found = /^#\/filters\/(.+)$/.exec(location.hash);
  try {
    return found && decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

async function poll() {
  if (document.hidden || page.asking || !part("token-form").hidden) return;
  page.asking = true;
  page.again = false;
  const name = named();
  const path = name === null ? "overview" : `filters/${encodeURIComponent(name)}/detail`;
  try {
    const told = await ask(path);
    if (name === named()) show(name, told);
  } catch (error) {
    if (name === named()) fail(name, error);
  }
  page.asking = false;
  if (page.again) poll();
}

function show(name, told) {
  page.heard = new Date().toLocaleTimeString("en-GB");
  part("forget-token").hidden = token.get() === null;
  if (name === null) {
    const isEmpty = told.filters.length === 0;
    reveal(isEmpty ? "none" : "overview", "doctor", "status");
    if (!isEmpty) showOverview(told);
    showStatus(told);
  } else {
    reveal("filter");
    part("known").hidden = false;
    write(part("gone"), "");
    showFilter(told);
  }
  document.body.classList.remove("stale");
  write(part("banner"), "");
}

/** Say why there is no answer; old figures turn grey. */
function fail(name, error) {
  if (error.status === 401) {
    wantToken();
    return;
  }
  if (name !== null && [403, 404, 422].includes(error.status)) {
    reveal("filter");
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
  const findings = redis.findings.filter(({ level }) => level !== "ok");
  writeProblems(part("findings"), findings.map((each) => ({ ...each, title: `Redis, ${each.subject}:` })));
}

// --- The address

function go() {
  const name = named();
  document.title = name === null ? "urifilter" : `${name} – urifilter`;
  write(part("name"), name ?? "");
  if (part("token-form").hidden && page.heard) {
    reveal();
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

// --- Polling

go();
setInterval(poll, POLL_EVERY);
document.addEventListener("visibilitychange", poll);
