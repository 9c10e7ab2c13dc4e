// The last use of each token, and the addresses that were refused.

import { make, part, resize, write } from "./dom.js";
import { ago, whole } from "./figures.js";

/** Show what the service tells of its tokens. */
export function showAccess({ now, tokens, refusals }) {
  part("no-tokens").hidden = tokens.length > 0;
  part("tokens").hidden = tokens.length === 0;
  showLines(part("tokens"), tokens.map((each) => [each.name, each.filters.join(", "), each.access, ago(each.last_used, now)]));
  part("no-refusals").hidden = refusals.length > 0;
  part("refusals").hidden = refusals.length === 0;
  showLines(part("refusals"), refusals.map(({ address, count, last }) => [address, whole(count), ago(last, now)]));
}

function showLines(table, lines) {
  const [, ...others] = table.tHead.rows[0].cells;
  const makeLine = () => make("tr", {}, make("th", { scope: "row" }), ...others.map(() => make("td")));
  resize(table.tBodies[0], lines.length, makeLine);
  lines.forEach((texts, place) => texts.forEach((text, column) => write(table.tBodies[0].rows[place].cells[column], text)));
}
