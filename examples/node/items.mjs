// How an item becomes a digest: its spelling, its bytes, its hash.

import { createHash } from 'node:crypto';
import { blake2b } from '@noble/hashes/blake2.js';

/** A function that makes the digest of an item, 16 bytes, for a filter with these settings. */
export function digester({ normalize, rules, hash, seed }, known) {
  const spelling = normalizer(normalize, known, rules);
  const digest = hasher(hash, seed);
  return (item) => digest(bytesOf(spelling(item)));
}

export function hasher(hash, seed) {
  if (hash === 'mmh3') return (bytes) => murmur3(bytes, BigInt(seed));
  if (hash === 'md5') return (bytes) => createHash('md5').update(bytes).digest();
  if (hash === 'blake2b') {
    const key = Buffer.from(seed, 'hex');
    return (bytes) => Buffer.from(blake2b(bytes, { key, dkLen: 16 }));
  }
  throw new Error(`hash is ${hash}, which this client does not know`);
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

/** The bytes of an item: text as UTF-8, bytes as they are, any other JSON value as Python's json.dumps writes it. */
export function bytesOf(item) {
  if (typeof item === 'string') return utf8(item);
  if (item instanceof Uint8Array) return Buffer.from(item);
  if (item === null || item === undefined) throw new TypeError(`${item} is no item`);
  return Buffer.from(`\0json:${json(item)}`);
}

// Node writes U+FFFD for half a surrogate pair. Python's surrogatepass writes three bytes, as for any other character.
function utf8(text) {
  if (text.isWellFormed()) return Buffer.from(text);
  return Buffer.concat(Array.from(text, (char) => {
    const code = char.codePointAt(0);
    if (code < 0xd800 || code > 0xdfff) return Buffer.from(char);
    return Buffer.from([0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)]);
  }));
}

// A float that is a whole number (1.0) is written as an integer: JavaScript cannot tell them apart.
function json(value) {
  if (value === null || typeof value === 'boolean') return String(value);
  if (typeof value === 'bigint') return String(value);
  if (typeof value === 'number') return number(value);
  if (typeof value === 'string') return quoted(value);
  if (Array.isArray(value)) return `[${value.map(json).join(',')}]`;
  if (Object.getPrototypeOf(value ?? 0) !== Object.prototype) throw new TypeError(`${value} is not JSON`);
  const keys = Object.keys(value).sort(byCodePoint);
  return `{${keys.map((key) => `${quoted(key)}:${json(value[key])}`).join(',')}}`;
}

function number(value) {
  if (Object.is(value, -0)) return '-0.0';
  if (Number.isSafeInteger(value)) return String(value);
  if (!Number.isFinite(value) || Number.isInteger(value)) throw new TypeError(`${value}: take a BigInt`);
  if (Math.abs(value) >= 1e-4) return String(value);
  return value.toExponential().replace(/e-(\d)$/, 'e-0$1');
}

function quoted(text) {
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return JSON.stringify(text).replace(/[\x7f-\uffff]/g, escaped);
}

function byCodePoint(one, other) {
  const [left, right] = [[...one], [...other]];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    if (left[i] !== right[i]) return left[i].codePointAt(0) - right[i].codePointAt(0);
  }
  return left.length - right.length;
}

// ---- normalisation --------------------------------------------------------------------------------------------------

/**
 * A function that returns the spelling of an item.
 *
 * `known` is vectors.json, which lists parameters and index pages; `rules` is the field of meta, if it has one.
 */
export function normalizer(name, known, rules = '[]') {
  if (name === 'none') return (item) => item;
  if (!['whatwg', 'sorted', 'loose'].includes(name)) {
    throw new Error(`normalize is ${name}, which this client does not know`);
  }
  const ruleOf = rulesByHost(JSON.parse(rules));
  const [tracking, index] = [new Set(known.tracking_parameters), new Set(known.index_pages)];
  const loose = name === 'loose';
  const change = (parsed) => {
    parsed.hash = '';
    if (name === 'whatwg') return parsed;
    const url = new URL(plainEscapes(parsed.href));
    if (!['http:', 'https:'].includes(url.protocol)) {
      sortQuery(url, {}, tracking);
      return url;
    }
    if (loose) url.protocol = 'https:';
    url.hostname = plainHost(url.hostname, loose);
    const rule = ruleOf(url.hostname);
    url.pathname = pathOf(url.pathname, rule, loose, index);
    sortQuery(url, rule, tracking);
    if (loose && !url.search) url.search = '';
    return url;
  };
  return (item) => normalized(item, change);
}

/** Text without escapes of unreserved characters, and with other escapes in capitals. */
function plainEscapes(text) {
  const made = text.replace(/%[0-9a-f]{2}/gi, (escape) => {
    const char = String.fromCharCode(parseInt(escape.slice(1), 16));
    return /[\w.~-]/.test(char) ? char : escape.toUpperCase();
  });
  return made === text ? made : plainEscapes(made); // what comes of one escape may complete another
}

function plainHost(host, loose) {
  const whole = /[^.]\.$/.test(host) ? host.slice(0, -1) : host;
  return loose ? whole.replace(/^(www\.)+(?=[^.]+\.[^.])/, '') : whole;
}

// Escapes are decoded to the characters of their bytes' numbers, so that names compare as bytes do.
function nameOf(parameter) {
  const escaped = (_, hex) => String.fromCharCode(parseInt(hex, 16));
  return parameter.split('=', 1)[0].replace(/%([0-9a-f]{2})/gi, escaped);
}

function sortQuery(url, rule, tracking) {
  if (rule.drop_all) url.search = '';
  if (!url.search) return;
  const isAmong = (name, patterns) => patterns.some((each) => {
    const text = utf8(each).toString('latin1');
    return text.endsWith('*') ? name.startsWith(text.slice(0, -1)) : name === text;
  });
  const stays = rule.keep
    ? (name) => isAmong(name, rule.keep)
    : (name) => !tracking.has(name) && !isAmong(name, rule.drop ?? []);
  const pairs = url.search.slice(1).split('&').filter(Boolean).map((pair) => [nameOf(pair), pair]);
  const kept = pairs.filter(([key]) => stays(key)).sort(([a], [b]) => (a < b ? -1 : Number(a > b)));
  url.search = kept.length ? `?${kept.map(([, pair]) => pair).join('&')}` : '';
}

// ---- rules ----------------------------------------------------------------------------------------------------------

/** A function that returns the one rule of a host: its own, else that of the longest domain, else the one for all. */
function rulesByHost(rules) {
  const hosts = new Map(rules.filter((rule) => 'host' in rule).map((rule) => [rule.host, rule]));
  const domains = new Map(rules.filter((rule) => 'domain' in rule).map((rule) => [rule.domain, rule]));
  const other = rules.find((rule) => !('host' in rule || 'domain' in rule)) ?? {};
  return (host) => {
    if (hosts.has(host)) return hosts.get(host);
    for (let rest = host; rest; rest = rest.includes('.') ? rest.slice(rest.indexOf('.') + 1) : '') {
      if (domains.has(rest)) return domains.get(rest);
    }
    return other;
  };
}

function pathOf(given, rule, loose, index) {
  let path = given;
  if (rule.lower_path) path = path.replace(/%[0-9A-F]{2}|[A-Z]/g, (some) => (some[0] === '%' ? some : some.toLowerCase()));
  let before;
  do {
    before = path;
    path = withoutPrefix(path, rule.cut_prefix);
    if (loose) path = path.replace(/\/+$/, '');
    path = withoutSuffix(path, rule.cut_suffix);
    if (loose) path = withoutIndex(path, index);
  } while (path !== before);
  return path || '/';
}

function withoutPrefix(path, prefix) {
  let at = 0;
  while (prefix && path.startsWith(prefix, at) && ['/', undefined].includes(path[at + prefix.length])) at += prefix.length;
  return path.slice(at);
}

/** The path without the suffix of its last segment. No escape is cut, and no segment of dots comes of it. */
function withoutSuffix(path, suffix) {
  if (!suffix) return path;
  const start = path.lastIndexOf('/') + 1;
  const mayEnd = (at) => !['.', '..'].includes(path.slice(start, at)) && ![1, 2].some(
    (back) => at - back >= start && /^%[0-9A-F]{2}/.test(path.slice(at - back)),
  );
  if (!suffix.endsWith('*')) {
    const cut = path.length - suffix.length;
    return cut >= start && path.endsWith(suffix) && mayEnd(cut) ? withoutSuffix(path.slice(0, cut), suffix) : path;
  }
  let at = start - 1;
  do at = path.indexOf(suffix.slice(0, -1), at + 1);
  while (at >= 0 && !mayEnd(at));
  return at < 0 ? path : path.slice(0, at);
}

/** The path without its last slashes and index pages: such as follow each other all go. */
function withoutIndex(given, index) {
  let path = given.replace(/\/+$/, '');
  while (index.has(path.slice(path.lastIndexOf('/') + 1).toLowerCase())) {
    path = path.slice(0, path.lastIndexOf('/')).replace(/\/+$/, '');
  }
  return path;
}

function normalized(item, change) {
  let text = item;
  try {
    if (item instanceof Uint8Array) text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(item);
    if (typeof text !== 'string' || !text.isWellFormed()) return item;
    const bare = text.replace(/^[\0- ]+|[\0- ]+$/g, '').replace(/[\t\n\r]/g, '');
    const url = change(new URL(isBare(bare) ? `https://${bare}` : text));
    return isBare(url.href) ? normalized(url.href, change) : url.href;
  } catch {
    return item;
  }
}

// The classes of characters are those of Python's \s and \d.
const SPACE = '\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const BARE = new RegExp(`^([^${SPACE}/?#:@\\\\]+)(:\\p{Nd}{1,5})?([/?#][^]*)?$`, 'u');

function isBare(text) {
  const found = BARE.exec(text);
  return found !== null && found[1].slice(1, -1).includes('.');
}

// ---- MurmurHash3, x64, 128 bits -------------------------------------------------------------------------------------

const [C1, C2] = [0x87c37b91114253d5n, 0x4cf5ad432745937fn];
const u64 = (value) => BigInt.asUintN(64, value);
const rotated = (value, by) => u64((value << by) | (value >> (64n - by)));
const mixed1 = (k) => u64(rotated(u64(k * C1), 31n) * C2);
const mixed2 = (k) => u64(rotated(u64(k * C2), 33n) * C1);

function finished(h) {
  h = u64((h ^ (h >> 33n)) * 0xff51afd7ed558ccdn);
  h = u64((h ^ (h >> 33n)) * 0xc4ceb9fe1a85ec53n);
  return h ^ (h >> 33n);
}

export function murmur3(bytes, seed) {
  let [h1, h2] = [seed, seed];
  const whole = bytes.length - (bytes.length % 16);
  for (let at = 0; at < whole; at += 16) {
    h1 = u64((rotated(h1 ^ mixed1(bytes.readBigUInt64LE(at)), 27n) + h2) * 5n + 0x52dce729n);
    h2 = u64((rotated(h2 ^ mixed2(bytes.readBigUInt64LE(at + 8)), 31n) + h1) * 5n + 0x38495ab5n);
  }
  const tail = Buffer.alloc(16);
  bytes.copy(tail, 0, whole);
  h1 ^= mixed1(tail.readBigUInt64LE(0)) ^ BigInt(bytes.length); // zeros change nothing
  h2 ^= mixed2(tail.readBigUInt64LE(8)) ^ BigInt(bytes.length);
  h1 = u64(h1 + h2);
  h2 = u64(h2 + h1);
  [h1, h2] = [finished(h1), finished(h2)];
  h1 = u64(h1 + h2);
  h2 = u64(h2 + h1);
  const digest = Buffer.alloc(16);
  digest.writeBigUInt64LE(h1, 0);
  digest.writeBigUInt64LE(h2, 8);
  return digest;
}
