// Swagger UI over this service's own description, with the token of this tab.

import { Refused, describe, token } from "./api.js";

const banner = document.getElementById("banner");

const base = new URL(".", location.href).href.replace(/\/$/, ""); // a proxy may have the service below a path

try {
  SwaggerUIBundle({
    spec: { ...(await describe()), servers: [{ url: base }] },
    dom_id: "#manual",
    deepLinking: true,
    validatorUrl: null, // which would be asked elsewhere
    requestInterceptor: (request) => {
      if (token.get() && request.url.startsWith(`${base}/`)) request.headers.Authorization ??= `Bearer ${token.get()}`;
      return request;
    },
  });
} catch (error) {
  if (!(error instanceof Refused)) throw error;
  banner.textContent = `${error.message}. `;
  if (error.status === 401) {
    const page = Object.assign(document.createElement("a"), { href: "./", textContent: "Give this tab a token first" });
    banner.append(page);
  }
}
