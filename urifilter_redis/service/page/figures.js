// Figures that a person can read.

const twoDigits = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 2 }).format;
const threeDigits = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format;
const inMillions = new Intl.NumberFormat("en-US", {
  notation: "compact",
  compactDisplay: "long",
  maximumSignificantDigits: 2,
}).format;
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format;

export const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }).format;
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
export const count = (value) => (value < 100_000 ? whole(value) : compact(value));

export function percent(share) {
  if (share > 0 && share < 1e-4) return "< 0.01 %";
  return `${share < 0.1 ? twoDigits(100 * share) : whole(100 * share)} %`;
}

/** Return a rate such as "1 in 10,000". */
export function oneIn(rate) {
  if (rate === 0) return "none yet";
  if (rate < 1e-9) return "less than 1 in a billion";
  return `1 in ${rate <= 1e-6 ? inMillions(1 / rate) : twoDigits(1 / rate)}`;
}

export const shortRate = (rate) => oneIn(rate).replace("less than 1 in a billion", "< 1 in a billion");

export function bytes(size) {
  const step = Math.floor(Math.log10(size || 1) / 3);
  return `${threeDigits(size / 1000 ** step)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

export function span(seconds) {
  if (seconds < 90) return `${whole(Math.max(0, seconds))} s`;
  if (seconds < 90 * 60) return `${whole(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${whole(seconds / 3600)} h`;
  return seconds < 730 * 86_400 ? `${whole(seconds / 86_400)} d` : `${whole(seconds / 31_557_600)} years`;
}

export function speed(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond > 0 && perSecond < 0.01) return `${twoDigits(perSecond * 3600)} an hour`;
  return perSecond < 10 ? twoDigits(perSecond) : count(perSecond);
}

/** Return what stands behind a speed where no title says it. */
export const speedUnit = (perSecond) => (speed(perSecond).endsWith("hour") ? "" : " a second");

export const ago = (time, now) => (time === null ? "never" : `${span(now - time)} ago`);
export const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

/** Return when a rotation is due. */
export function due(time, now) {
  if (time === null) return "none";
  return now > time ? `${span(now - time)} late` : `in ${span(time - now)}`;
}

const WORDS = { no_checkpoint: "no checkpoint", lapsed: "nobody reclaims", slice_lost: "bitmap lost" };

/** Return a problem's code in words. */
export const words = (code) => WORDS[code] ?? code.replaceAll("_", " ");
