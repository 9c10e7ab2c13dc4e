// What an admin may do with a whole filter. Each action may be repeated after a lost answer.

import { ask, askUntilDone } from "./api.js";
import { make, part, write } from "./dom.js";
import { ago, bytes, plural, whole } from "./figures.js";
import { confirmed } from "./question.js";

const pathOf = (name, action) => `filters/${encodeURIComponent(name)}/${action}`;
const isArchived = ({ archive }) => archive !== null && archive !== "redis";

// Each action: whether it asks for a text, whether it is for a filter, its body (null: the user does not want it), the
// body with which it is asked for once more after a refusal (null: none), and its result in words.
const ACTIONS = [
  {
    action: "rotate",
    label: "Rotate",
    fits: (info) => Boolean(info?.period),
    body: bodyOfRotation,
    result: ({ epoch, rotated }) => (rotated ? `rotated: this is epoch ${whole(epoch)}` : `others rotated it: this is epoch ${whole(epoch)}`),
  },
  {
    action: "checkpoint",
    label: "Checkpoint",
    fits: (info) => info && isArchived(info),
    body: bodyOfCheckpoint,
    result: ({ number, shards, size }) => `checkpoint ${whole(number)} is written: ${plural(shards, "shard")}, ${bytes(size)}`,
  },
  {
    action: "restore",
    label: "Restore",
    fits: (info) => !info || isArchived(info),
    body: bodyOfRestore,
    result: () => "whole: all that Redis lacked is back",
  },
  {
    action: "acknowledge",
    label: "Acknowledge",
    fits: (info) => Boolean(info?.loss),
    body: bodyOfAcknowledgement,
    result: () => "acknowledged",
  },
  {
    action: "union",
    label: "Unite",
    asks: true,
    fits: Boolean,
    body: bodyOfUnion,
    otherwise: bodyOverCapacity,
    result: ({ added }) => `about ${plural(added, "item")} added`,
  },
  {
    action: "drop",
    label: "Drop",
    asks: true,
    fits: Boolean,
    body: bodyOfDrop,
    result: ({ dropped }) => (dropped ? "dropped" : "gone already"),
  },
];

async function bodyOfRotation(name, { slices }) {
  const { epoch } = await ask(pathOf(name, "rotate"), { dry_run: true });
  const reply = await confirmed({
    title: `Rotate ${name}?`,
    text: `New items go into a new slice, in epoch ${whole(epoch)}. If all ${slices} slices are in use, the items of the oldest one expire.`,
    button: "Rotate",
  });
  return reply === null ? null : { expected_epoch: epoch - 1 };
}

async function bodyOfCheckpoint(name, info) {
  const changed = info.checkpointed === null ? "All of it" : `What has changed since the last one${whenOf(info)}`;
  const reply = await confirmed({
    title: `Write a checkpoint of ${name}?`,
    text: `${changed} is written to ${info.archive}. That may take minutes.`,
    button: "Checkpoint",
  });
  return reply === null ? null : {};
}

async function bodyOfRestore(name, info) {
  const reply = await confirmed({
    title: `Restore ${name}?`,
    text: `The parts that Redis lacks are brought back from the archive. In these, what came after the last checkpoint${whenOf(info)} is new again.`,
    button: "Restore",
  });
  return reply === null ? null : {};
}

async function bodyOfAcknowledgement(name) {
  const reply = await confirmed({
    title: `Acknowledge what ${name} lost?`,
    text: "It was restored from its archive. What came after the checkpoint may be new once more. Nobody is told of that from now on.",
    button: "Acknowledge",
  });
  return reply === null ? null : {};
}

const whenOf = (info) => (info?.checkpointed ? ` (${ago(info.checkpointed, Date.now() / 1000)})` : "");

async function bodyOfUnion(name) {
  const reply = await confirmed({
    title: `Insert the items of other filters into ${name}?`,
    text: "The others stay as they are. They need the same geometry, hash and seed.",
    field: "Names of the other filters, with spaces between",
    accepts: (text) => text !== "",
    button: "Unite",
  });
  return reply === null ? null : { sources: reply.split(/[\s,]+/) };
}

async function bodyOverCapacity(name, asked, { code, message }) {
  if (code !== "over_capacity") return null;
  const reply = await confirmed({ title: `Put ${name} over its capacity?`, text: message, button: "Unite all the same" });
  return reply === null ? null : { ...asked, over_capacity: true };
}

async function bodyOfDrop(name, info) {
  const archive = isArchived(info) ? " Its archive is removed, too." : "";
  const reply = await confirmed({
    title: `Drop ${name}?`,
    text: `Its ${plural(info.inserted, "item")} will be new again, and nothing brings them back.${archive}`,
    field: `Type the filter's name: ${name}`,
    accepts: (text) => text === name,
    button: "Drop",
  });
  return reply === null ? null : { confirm: name, uid: info.uid };
}

/** The document's event after an action. */
export const ACTED = "acted";

let notice = "";

/** Return what is to be said on the page that is gone to, once. */
export function takeNotice() {
  const text = notice;
  notice = "";
  return text;
}

const outcomes = new Map(); // by filter: the text and the kind of its last action, and whether it is under way
let shown = {};

/** Show the actions on a filter to an admin; without `info` those on one that does not answer. */
export function showActions(name, access, info) {
  const isAdmin = access === "admin";
  const labels = isAdmin ? ACTIONS.filter(({ fits }) => fits(info)) : [];
  const key = JSON.stringify([name, labels.map(({ action }) => action)]);
  if (shown.key !== key) part("action-buttons").replaceChildren(...labels.map(buttonOf));
  shown = { key, name, info };
  part("actions").hidden = labels.length === 0;
  showOutcome();
}

function buttonOf({ action, label, asks }) {
  const button = make("button", { type: "button", value: action, class: "write" }, asks ? `${label} …` : label);
  button.addEventListener("click", () => start(action));
  return button;
}

function showOutcome() {
  const { text = "", kind = "", busy = false } = outcomes.get(shown.name) ?? {};
  for (const button of part("action-buttons").children) button.disabled = busy;
  write(part("action-outcome"), text);
  part("action-outcome").className = kind;
}

async function start(action) {
  const { name, info } = shown;
  const { label, body, otherwise = () => null, result } = ACTIONS.find(({ action: each }) => each === action);
  const { hash } = location;
  const tell = (text, more) => {
    outcomes.set(name, { text, ...more });
    showOutcome();
  };
  try {
    const asked = await body(name, info);
    if (asked === null) return;
    tell(`${label} is under way …`, { busy: true });
    const reply = await askUntilDone(pathOf(name, action), asked).catch(async (error) => {
      const again = await otherwise(name, asked, error);
      if (again === null) throw error;
      return askUntilDone(pathOf(name, action), again);
    });
    tell(`${name}: ${result(reply)}`);
    if (action === "drop" && hash === location.hash) {
      notice = outcomes.get(name).text;
      location.hash = "#/";
    } else document.dispatchEvent(new Event(ACTED));
  } catch (error) {
    tell(error.message, { kind: "danger" });
  }
}

/** Say what became of a filter that was made just now. */
export const noteMade = (name) => outcomes.set(name, { text: `${name}: made` });
