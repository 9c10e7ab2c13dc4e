// The form that makes a filter, for admins.

import { noteMade } from "./actions.js";
import { askUntilDone } from "./api.js";
import { part, write } from "./dom.js";

const THOUSANDS = { "": 1, k: 1e3, M: 1e6, G: 1e9 };
const TIMED = ["ring", "rolling"];

/** Return the number that a text such as "10M" stands for; the field's pattern lets no other text pass. */
function numberOf(text) {
  const [, number, unit] = /^([\d.]+)([kMG]?)$/.exec(text);
  return Math.round(number * THOUSANDS[unit]);
}

function body() {
  const retention = part("new-retention").value;
  const timed = TIMED.includes(retention) && { slices: Number(part("new-slices").value), period: part("new-period").value };
  return { capacity: numberOf(part("new-capacity").value), error_rate: Number(part("new-rate").value), retention, ...timed };
}

function showTimed() {
  const isTimed = TIMED.includes(part("new-retention").value);
  part("timed").disabled = !isTimed;
  part("timed").hidden = !isTimed;
}

part("new-retention").addEventListener("change", showTimed);
showTimed();

part("make").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = part("new-name").value;
  part("make-it").disabled = true;
  write(part("make-error"), "");
  try {
    await askUntilDone(`filters/${encodeURIComponent(name)}/create`, body());
    noteMade(name);
    location.hash = `#/filters/${encodeURIComponent(name)}`;
    part("make").reset();
    showTimed();
  } catch (error) {
    write(part("make-error"), error.message);
  }
  part("make-it").disabled = false;
});
