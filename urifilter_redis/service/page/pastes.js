// Lines to paste, for a filter. The address of Redis is not for every user of the page, so it is left to fill in.

import { token } from "./api.js";

const REDIS = "redis://HOST:6379/0";
const URI = "https://example.com/";

export function pastes({ filter: name, meta }) {
  const url = new URL(".", location.href).href.replace(/\/$/, "");
  const prefix = meta.slice(0, meta.indexOf(":{"));
  const isUsual = prefix === "urifilter";
  const secret = token.get() ? `, access_token="TOKEN"` : "";
  const bearer = token.get() ? ` -H 'Authorization: Bearer TOKEN'` : "";
  return [
    [
      "Python, over HTTP",
      `from urifilter_redis.sdk import FilterAPIClient\n\napi = FilterAPIClient("${url}"${secret})\n` +
        `api.unique("${name}", ["${URI}"])  # those not seen before`,
    ],
    [
      "Python, with Redis",
      `from urifilter_redis import UriFilter\n\nwith UriFilter.open("${name}", redis="${REDIS}"` +
        `${isUsual ? "" : `, prefix="${prefix}"`}) as seen:\n    seen.insert("${URI}")  # True: new`,
    ],
    ["Command line", `urifilter info ${name} --redis ${REDIS}${isUsual ? "" : ` --prefix ${prefix}`}`],
    ["curl", `curl -s${bearer} ${url}/v1/filters/${name}/contains -d '{"items": ["${URI}"]}'`],
    ["redis-cli", `redis-cli -u ${REDIS} HGETALL '${meta}'`],
  ];
}
