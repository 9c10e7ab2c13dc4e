// The status page: it polls the filters while it is visible, and asks about the URIs in the box.
// Text from the service or the user is set as text, never as markup.

const POLL_EVERY = 2000; // ms
const PATIENCE = 10_000; // ms
const LATE = 600; // s after which a rotation that is due counts as missed; cron and workers look more often
const TOKEN = "urifilter-token"; // the token's key in sessionStorage

const part = (id) => document.getElementById(id);
const copyOf = (template) => part(template).content.firstElementChild.cloneNode(true);

// --- Numbers for humans

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }).format;
const twoDigits = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 2 }).format;
const threeDigits = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format;
const rounded = { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 2 };
const inMillions = new Intl.NumberFormat("en-US", rounded).format;
const toTheUnit = (value) => (value < 10 ? twoDigits(value) : whole(value));
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const percent = (share) => (share > 0 && share < 1e-4 ? "< 0.01 %" : `${toTheUnit(100 * share)} %`);
const exponential = (rate) => (rate ? rate.toExponential(1).replace(".0e", "e") : "0");

function oneIn(rate) {
  if (rate === 0 || rate >= 0.01) return percent(rate);
  return `1 in ${rate < 1e-7 ? inMillions(1 / rate) : twoDigits(1 / rate)}`;
}

function bytes(size) {
  const step = Math.floor(Math.log10(size || 1) / 3);
  return `${threeDigits(size / 1000 ** step)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

function span(seconds) {
  if (seconds < 90) return `${whole(Math.max(0, seconds))} s`;
  if (seconds < 90 * 60) return `${whole(seconds / 60)} min`;
  return seconds < 36 * 3600 ? `${whole(seconds / 3600)} h` : `${whole(seconds / 86_400)} d`;
}

// --- The document

/** Set a text, if it has changed: so a selection stays, and screen readers do not read it out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function writeAll(root, texts) {
  for (const [field, text] of Object.entries(texts)) write(root.querySelector(`[data-field=${field}]`), text);
}

/** Give `parent` so many children; the remaining ones keep their state. */
function resize(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
}

// --- Asking the service

async function ask(path, question) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const options = { method: question ? "POST" : "GET", headers, body: JSON.stringify(question), cache: "no-store" };
  const signal = AbortSignal.timeout(PATIENCE);
  const reply = await fetch(`v1/filters${path}`, { ...options, signal }).catch(() => {
    throw new Error(signal.aborted ? "the service does not answer" : "the service cannot be reached");
  });
  if (reply.ok) return reply.json();
  const { error = `the service answered ${reply.status}` } = await reply.json().catch(() => ({}));
  if (reply.status !== 401) throw new Error(error);
  if (token === sessionStorage.getItem(TOKEN)) wantToken(token !== null);
  throw new Error(""); // the form shows the message
}

/** A part of the page that is asked for again and again, by one request at a time. */
class Polled {
  trouble = "";

  constructor(path) {
    this.path = path;
  }

  async poll() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.show(await ask(this.path));
      this.trouble = "";
    } catch (error) {
      this.trouble = error.message;
    }
    this.asking = false;
    showTrouble();
  }
}

// --- The filters

class Filters extends Polled {
  cards = new Map();

  show({ filters: names }) {
    this.heard = new Date().toLocaleTimeString("en-GB");
    part("token-form").hidden = true;
    part("forget-token").hidden = sessionStorage.getItem(TOKEN) === null;
    part("none").hidden = names.length > 0;
    part("try").hidden = part("to-try").hidden = names.length === 0;
    if (names.join() !== [...this.cards.keys()].join()) this.arrange(names);
  }

  arrange(names) {
    const open = names.length < 4 && matchMedia("(min-width: 60rem)").matches;
    this.cards = new Map(names.map((name) => [name, this.cards.get(name) ?? new Card(name, open)]));
    part("filters").replaceChildren(...Array.from(this.cards.values(), (card) => card.article));
    const chosen = part("filter").value;
    part("filter").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
    this.pollCards();
  }

  pollCards() {
    for (const card of this.cards.values()) card.poll();
  }
}

class Card extends Polled {
  constructor(name, open) {
    super(`/${encodeURIComponent(name)}`);
    this.article = copyOf("card");
    this.article.ariaLabel = `Filter ${name}`;
    this.article.querySelector("details").open = open;
    writeAll(this.article, { name });
  }

  show({ info, now, measured, answered, problem }) {
    writeAll(this.article, {
      kind: kindOf(info),
      warning: [...warningsOf(info, now), problem && `Problem: ${problem}.`].filter(Boolean).join(" "),
      items: whole(info.inserted),
      room: `${percent(info.inserted / roomOf(info))} of ${whole(roomOf(info))}`,
      rate: oneIn(info.error_rate_now),
      promised: `promised ${oneIn(info.error_rate)}`,
      ...this.speed(answered, now),
      ...rotationOf(info, now),
      checkpoint: info.checkpointed ? `${span(now - info.checkpointed)} ago` : "never",
      archive: keepsCheckpoints(info) ? info.archive : "no archive",
      memory: bytes(info.memory),
      fill: `${percent(info.fill)} of bits set`,
      summary: `${plural(info.live_slices.length, "slice")} · measured ${span(now - measured)} ago`,
    });
    this.article.classList.toggle("erring", isErring(info));
    showBar(this.article.querySelector(".bar"), info);
    showSlices(this.article.querySelector("tbody"), info.live_slices, now);
  }

  speed(answered, now) {
    const before = this.before ?? {};
    this.before = { ...answered, now };
    const fresh = answered.new - before.new;
    const items = fresh + answered.seen - before.seen;
    const seconds = now - before.now;
    // After a pause the speed would be an old average, and after a restart it would be negative.
    const known = items >= 0 && seconds < (5 * POLL_EVERY) / 1000;
    return {
      speed: known ? toTheUnit(items / seconds) : "–",
      novelty: known && items ? `${percent(fresh / items)} new` : "asked here",
    };
  }
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

function isErring(info) {
  return info.error_rate_now > 1.5 * info.error_rate;
}

function keepsCheckpoints({ archive }) {
  return archive !== null && archive !== "redis";
}

function warningsOf(info, now) {
  return [
    info.over_capacity && "It holds more than it was made for: make a larger one.",
    isErring(info) && "More items are wrongly seen than promised.",
    info.phase === "restoring" && "It is being restored. If that has stopped: urifilter restore.",
    keepsCheckpoints(info) && !info.checkpointed && "Its archive has no checkpoint yet: does urifilter worker run?",
    info.next_rotation && now > info.next_rotation + LATE && "Nothing expires: does urifilter worker run?",
  ].filter(Boolean);
}

/** Return the number of items that fit: into the window, or, if items count in several slices, into all of them. */
function roomOf(info) {
  const together = info.retention === "growing" || (info.expire_after === "last-seen" && info.write !== "all");
  return together ? info.live_slices.reduce((sum, slice) => sum + slice.capacity, 0) : info.capacity;
}

function rotationOf({ next_rotation: due, period }, now) {
  if (due === null) return { rotation: "none", period: "nothing expires" };
  return { rotation: now > due ? `${span(now - due)} late` : `in ${span(due - now)}`, period: `every ${period}` };
}

/** Show the items of each slice along the room for all, oldest and palest first. */
function showBar(bar, info) {
  const isNew = ({ inserted }, index, all) => inserted - (info.write === "all" && index ? all[index - 1].inserted : 0);
  const held = info.live_slices.map(isNew).reverse();
  const length = Math.max(roomOf(info), info.inserted);
  resize(bar, held.length, () => document.createElement("i"));
  held.forEach((items, place) => {
    bar.children[place].style.width = `${(100 * items) / length}%`;
    bar.children[place].style.opacity = 0.4 + (0.6 * (place + 1)) / held.length;
    bar.children[place].classList.toggle("over", info.live_slices.at(-1 - place).over_capacity);
  });
  bar.style.setProperty("--capacity", roomOf(info) / length);
}

function showSlices(body, slices, now) {
  resize(body, slices.length, () => copyOf("slice"));
  slices.forEach((slice, index) => {
    const row = body.children[index];
    writeAll(row, {
      age: String(index + 1),
      slice: slice.name,
      opened: `${span(now - slice.opened)} ago`,
      items: whole(slice.inserted),
      full: percent(slice.inserted / slice.capacity),
      bits: percent(slice.fill),
      rate: exponential(slice.error_rate_now),
      size: bytes(slice.size),
    });
    row.classList.toggle("over", slice.over_capacity);
  });
}

/** Show the trouble, and grey old figures: all if the service is away, else those of the filters in trouble. */
function showTrouble() {
  for (const { article, trouble } of filters.cards.values()) {
    article.classList.toggle("stale", Boolean(filters.trouble || trouble));
  }
  const since = filters.heard ? ` The figures are from ${filters.heard}.` : "";
  const troubled = [...filters.cards.values()].find(({ trouble }) => trouble);
  write(part("banner"), filters.trouble ? `${filters.trouble}.${since}` : (troubled?.trouble ?? ""));
}

// --- The token

function wantToken(isWrong) {
  sessionStorage.removeItem(TOKEN);
  for (const id of ["none", "try", "to-try", "forget-token"]) part(id).hidden = true;
  filters.arrange([]);
  write(part("token-error"), isWrong ? "Wrong token: the service does not know it." : "");
  part("token-form").hidden = false;
  part("token").focus();
}

part("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, part("token").value);
  filters.poll();
});

part("forget-token").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
});

// --- Trying URIs

const OUTCOMES = { contains: "new in", insert: "new and inserted into", forget: "forgotten in" };

/** Put an answer into words: an age, or whether the item was there. */
function inWords(answer) {
  if (typeof answer === "boolean") return answer ? "forgotten" : "was not there";
  return answer ? `seen (age ${answer})` : "new";
}

part("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [name, command] = [part("filter").value, event.submitter.value];
  const uris = part("uris").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const path = `/${encodeURIComponent(name)}/${command}`;
  try {
    const { ages, was_there: wereThere } = await ask(path, { URI_list: uris });
    showAnswers(uris, ages ?? wereThere, `${OUTCOMES[command]} ${name}`);
  } catch (error) {
    part("answers").replaceChildren();
    showOutcome(error.message, "warning");
  }
});

function showAnswers(uris, answers, outcome) {
  const lines = uris.map((uri, index) => {
    const line = copyOf("answer");
    writeAll(line, { uri, answer: inWords(answers[index]) });
    line.classList.toggle("new", answers[index] === 0);
    return line;
  });
  part("answers").replaceChildren(...lines);
  const counted = answers.filter((answer) => answer === 0 || answer === true).length;
  showOutcome(`${whole(counted)} of ${whole(answers.length)} ${outcome}`, "");
}

function showOutcome(text, kind) {
  part("outcome").textContent = text;
  part("outcome").className = kind;
}

part("uris").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) part("try").requestSubmit(part("check"));
});

// --- Polling

const filters = new Filters("");

function poll() {
  if (document.hidden || !part("token-form").hidden) return;
  filters.poll();
  filters.pollCards();
}

poll();
setInterval(poll, POLL_EVERY);
document.addEventListener("visibilitychange", poll);
