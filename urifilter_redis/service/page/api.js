// Asking the service, with the token of this tab.

const PATIENCE = 10_000; // ms
const TOKEN = "urifilter-token"; // the token's key in sessionStorage

/** A request that the service refused, with the HTTP status; 0: there was no answer. */
export class Refused extends Error {
  constructor(text, status = 0) {
    super(text);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** Ask below /v1/: GET, or POST with a question. */
export const ask = (path, question) => asked(`v1/${path}`, question);

/** Ask for the description of all that can be asked. */
export const describe = () => asked("openapi.json");

async function asked(address, question) {
  const sent = token.get();
  const headers = { "Content-Type": "application/json", ...(sent && { Authorization: `Bearer ${sent}` }) };
  const options = { method: question ? "POST" : "GET", headers, body: JSON.stringify(question), cache: "no-store" };
  const signal = AbortSignal.timeout(PATIENCE);
  const reply = await fetch(address, { ...options, signal }).catch(() => {
    throw new Refused(signal.aborted ? "The service does not answer" : "The service cannot be reached");
  });
  if (reply.ok) return reply.json();
  const { error = `the service answered ${reply.status}` } = await reply.json().catch(() => ({}));
  throw new Refused(error, reply.status);
}
