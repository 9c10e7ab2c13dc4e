// Asking the service, with the token of this tab.

const PATIENCE = 10_000; // ms
const TOKEN = "urifilter-token"; // the token's key in sessionStorage

/** A request that the service refused, with the HTTP status and the code; status 0: there was no answer. */
export class Refused extends Error {
  constructor(text, status = 0, code = "") {
    super(text);
    Object.assign(this, { status, code });
  }
}

const NO_ANSWER = "no_answer"; // the code of a request that takes too long

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** Ask below /v1/: GET, or POST with a question. */
export const ask = (path, question) => asked(`v1/${path}`, question);

/** Ask for the state of all filters, which comes in several answers if they are many. */
export async function askForAll() {
  let told = await ask("overview");
  const { filters } = told;
  while (told.next) {
    told = await ask(`overview?after=${told.next}`);
    filters.push(...told.filters);
  }
  return { ...told, filters };
}

/** Ask for something that may take long: a repeat waits for what is under way, and changes nothing else. */
export async function askUntilDone(path, question) {
  for (;;) {
    try {
      return await ask(path, question);
    } catch (error) {
      if (error.code !== NO_ANSWER) throw error;
    }
  }
}

/** Ask for the description of all that can be asked. */
export const describe = () => asked("openapi.json");

/** Ask for the metrics, as text. */
export const measure = () => asked("metrics", undefined, (reply) => reply.text());

async function asked(address, question, read = (reply) => reply.json()) {
  const sent = token.get();
  const headers = { "Content-Type": "application/json", ...(sent && { Authorization: `Bearer ${sent}` }) };
  const options = { method: question ? "POST" : "GET", headers, body: JSON.stringify(question), cache: "no-store" };
  const signal = AbortSignal.timeout(PATIENCE);
  const reply = await fetch(address, { ...options, signal }).catch(() => {
    if (signal.aborted) throw new Refused("The service does not answer", 0, NO_ANSWER);
    throw new Refused("The service cannot be reached");
  });
  if (reply.ok) return read(reply);
  const { error = `the service answered ${reply.status}`, error_code: code } = await reply.json().catch(() => ({}));
  throw new Refused(error, reply.status, code);
}
