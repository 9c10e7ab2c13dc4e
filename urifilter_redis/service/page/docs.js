// Swagger UI over this service's own description, with the token of this tab.

import { Refused, describe, token } from "./api.js";

const banner = document.getElementById("banner");

try {
  SwaggerUIBundle({
    spec: await describe(),
    dom_id: "#manual",
    deepLinking: true,
    validatorUrl: null, // which would be asked elsewhere
    requestInterceptor: (request) => {
      if (token.get()) request.headers.Authorization ??= `Bearer ${token.get()}`;
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
