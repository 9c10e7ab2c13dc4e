// A client of a filter: it reads meta, calls the scripts, and repeats lost calls under their ids.

import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { digester } from './items.mjs';
import { baseOf, shardOf } from './keys.mjs';

const FORMAT = '1'; // the one that the exported scripts work on
const CALL_LIFE = 60_000; // ms from the making of a call id to its deadline
const PROOF_LIFE = 8 * 60_000; // ms for which the record of a call is certainly kept
const PATIENCE = 3_000; // ms for which a call is repeated
const AGAIN = ['BUSY', 'CLUSTERDOWN', 'LOADING', 'MASTERDOWN', 'RESTORING', 'TRYAGAIN']; // it did not run: wait

/** The filter cannot be used. `word` is the script's error word: NOFILTER, MISMATCH, FORMAT, LOST, FULL … */
export class FilterError extends Error {
  constructor(text) {
    super(text);
    this.word = text.split(' ', 1)[0];
  }
}

/** Some calls may have run, and their answers did not arrive. `filter.retry(error)` asks for them. */
export class AnswerLost extends Error {}

export class UriFilter {
  /** Open the filter `name`; `scripts` is the folder that `urifilter lua export` wrote. */
  static async open(name, { redis, scripts, prefix = 'urifilter' }) {
    const filter = new UriFilter(name, redis, scripts, prefix);
    try {
      await filter.#readMeta();
      return filter;
    } catch (error) {
      filter.close();
      throw error;
    }
  }

  #name; #prefix; #folder; #index; #known; #redis; #ahead = 0; #ids = new CallIds();
  #bases = new Map(); #slices = new Map();

  constructor(name, url, folder, prefix) {
    [this.#name, this.#prefix, this.#folder] = [name, prefix, folder];
    this.#index = JSON.parse(readFileSync(join(folder, 'scripts.json'))).scripts;
    this.#known = JSON.parse(readFileSync(join(folder, 'vectors.json')));
    // The client must not repeat commands by itself: only this file knows which may be repeated.
    const never = { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 };
    const pause = (times) => Math.min(20 * 2 ** times, 500);
    const waits = { connectTimeout: 1000, commandTimeout: 1500, retryStrategy: pause };
    this.#redis = new Redis(url, { ...never, ...waits, protocol: 2 });
    this.#redis.on('error', () => {}); // each command gets its own error
  }

  close() {
    this.#redis.disconnect();
  }

  /** Insert items; return the age of each: 0 = new, n = seen. */
  async insert(items, maxAge = 0) {
    return this.#ask('insert', items, maxAge);
  }

  /** Return the age of each item, without inserting: 0 = not seen. */
  async contains(items, maxAge = 0) {
    return this.#ask('contains', items, maxAge);
  }

  /** Make items new once more; return 1 for each that was seen. */
  async forget(items) {
    return this.#ask('forget', items, 0);
  }

  /** Take items out (layout counting); return 1 for each that was seen. */
  async remove(items) {
    return this.#ask('remove', items, 0);
  }

  /** Ask again for the answers that an error says are missing, under the same call ids. */
  async retry(error) {
    return this.#finish(error.batch);
  }

  // ---- meta ---------------------------------------------------------------------------------------------------------

  async #readMeta() {
    // Shard 0's keys follow from the name; its meta tells the number of shards, and so the keys of the others.
    const meta = await this.#query('HGETALL', `${baseOf(this.#prefix, this.#name, 0, 1)}meta`);
    if (!meta.uid || meta.phase === 'dropping') throw new FilterError('NOFILTER there is no filter of this name');
    if (meta.format !== FORMAT) throw new FilterError(`FORMAT ${meta.format}: use scripts of the release that wrote it`);
    if (meta.phase === 'creating') throw new FilterError('CREATING the filter is half made: repeat "urifilter create"');
    this.config = {
      uid: meta.uid, layout: meta.layout, k: Number(meta.k), shards: Number(meta.shards),
      normalize: meta.normalize, rules: meta.rules, hash: meta.hash, seed: meta.seed, limit: Number(meta.limit ?? Infinity),
    };
    this.digest = digester(this.config, this.#known);
    this.#slices.set(0, slicesOf(meta.slices));
    const [seconds, microseconds] = await this.#query('TIME');
    this.#learnTime(Number(seconds) * 1000 + Math.floor(Number(microseconds) / 1000));
  }

  // Reads may be repeated freely.
  async #query(...command) {
    for (const until = performance.now() + PATIENCE; ; await sleep(50)) {
      try {
        const reply = await this.#redis.call(...command);
        return command[0] === 'HGETALL' ? fields(reply) : reply;
      } catch (error) {
        if ((isReply(error) && !AGAIN.includes(wordOf(error))) || performance.now() > until) throw error;
      }
    }
  }

  #learnTime(now) {
    this.#ahead = now - performance.now();
  }

  #now() {
    return Math.floor(performance.now() + this.#ahead); // the server's time, ms
  }

  // ---- calls --------------------------------------------------------------------------------------------------------

  async #ask(command, items, maxAge) {
    const batch = { answers: new Array(items.length).fill(null), open: [] };
    const digests = items.map(this.digest);
    const shards = new Map();
    digests.forEach((digest, at) => {
      const shard = shardOf(digest, this.config.shards);
      shards.set(shard, [...(shards.get(shard) ?? []), at]);
    });
    for (const [shard, positions] of shards) {
      const most = Math.max(1, Math.min(500, Math.floor(2000 / this.#live(shard).length), this.config.limit));
      for (let at = 0; at < positions.length; at += most) {
        const part = positions.slice(at, at + most);
        const packed = Buffer.concat(part.map((position) => digests[position]));
        batch.open.push({ command, shard, positions: part, packed, maxAge, id: null, inDoubt: false });
      }
    }
    return this.#finish(batch);
  }

  async #finish(batch) {
    const results = await Promise.allSettled(batch.open.map((call) => this.#settle(call)));
    results.forEach(({ value }, i) => {
      value?.forEach((answer, at) => { batch.answers[batch.open[i].positions[at]] = answer; });
    });
    const reasons = results.filter(({ status }) => status === 'rejected').map(({ reason }) => reason);
    batch.open = batch.open.filter((_, i) => results[i].status === 'rejected');
    if (!reasons.length) return batch.answers;
    const worst = reasons.find((reason) => reason instanceof AnswerLost) ?? reasons[0];
    throw Object.assign(worst, { batch, answers: batch.answers });
  }

  // Sends one call until it is answered. It keeps its id, so that an attempt that ran counts, and a late copy of an
  // attempt cannot insert a second time.
  async #settle(call) {
    if (call.command !== 'contains') call.id ??= this.#ids.draw(this.#now());
    for (const until = performance.now() + PATIENCE; ;) {
      const before = call.inDoubt;
      try {
        call.inDoubt = call.id !== null;
        const answers = await this.#redis.call('EVALSHA', ...this.#arguments(call));
        if (call.id) this.#ids.release(call.id);
        return answers;
      } catch (error) {
        // A refused attempt did nothing; an earlier one may have run. A script that died may have done a part.
        if (isReply(error) && !/^ERR .*(user_script|Error running script)/.test(error.message)) call.inDoubt = before;
        if (!(await this.#again(call, error)) || performance.now() > until) {
          throw call.inDoubt ? new AnswerLost(error.message, { cause: error }) : new FilterError(error.message);
        }
      }
    }
  }

  // Prepares another attempt after an error; returns whether there is any use in one.
  async #again(call, error) {
    const word = wordOf(error);
    if (word === 'NOSCRIPT') {
      const source = readFileSync(join(this.#folder, this.#script(call).file));
      const refusal = await this.#redis.call('SCRIPT', 'LOAD', source).then(() => null, (reason) => reason);
      return refusal === null || !isReply(refusal);
    } else if (word === 'STALE') {
      if (!error.message.includes(', claims 0,')) return false; // this client has no scripts for shards with claims
      this.#slices.set(call.shard, slicesOf(error.message.split('live slices ')[1]));
    } else if (word === 'LATECALL') {
      const now = Number(error.message.split(' ')[1]);
      this.#learnTime(now);
      const nothingHappened = call.id.started + CALL_LIFE <= now && now < call.id.started + PROOF_LIFE;
      if (call.inDoubt && !nothingHappened) return false;
      call.id = this.#ids.renew(call.id, now);
      call.inDoubt = false;
    } else if (!isReply(error) || AGAIN.includes(word)) {
      await sleep(20 + 80 * Math.random());
    } else {
      return false; // NOFILTER, MISMATCH, FORMAT, LOST, FULL, OLDCALL, BADARG, NOPERM, OOM …
    }
    return true;
  }

  #script({ command }) {
    const { layout, k } = this.config;
    const found = this.#index[`${command}:${layout === 'blocked' ? `${layout}-${k}` : layout}`];
    if (!found) throw new FilterError(`BADARG ${command} is not for layout ${layout}`);
    return found;
  }

  #arguments(call) {
    if (!this.#bases.has(call.shard)) {
      this.#bases.set(call.shard, baseOf(this.#prefix, this.#name, call.shard, this.config.shards));
    }
    const slices = this.#live(call.shard).flatMap((slice) => segmentsOf(slice, call, this.config.shards));
    const names = ['meta', ...(call.command === 'contains' ? [] : ['replies']), 'forgotten', ...slices];
    const keys = names.map((name) => this.#bases.get(call.shard) + name);
    const id = call.id ? `${call.id.client}/${call.id.slot}/${call.id.sequence}/${call.id.started + CALL_LIFE}` : '-';
    return [this.#script(call).sha1, keys.length, ...keys, this.config.uid, id, call.maxAge, 'bin', call.packed];
  }

  // A shard's live slices, oldest first, as they were last read; at first those of shard 0.
  #live(shard) {
    return this.#slices.get(shard) ?? this.#slices.get(0);
  }
}

/** Draws call ids. A slot serves one call at a time; one whose call has no answer is not used again. */
class CallIds {
  #client = randomBytes(8).toString('hex');
  #free = [];
  #unused = 0;

  draw(now) {
    const { slot, sequence } = this.#free.pop() ?? { slot: this.#unused++, sequence: 0 };
    return { client: this.#client, slot, sequence: sequence + 1, started: now };
  }

  renew(id, now) {
    return { ...id, sequence: id.sequence + 1, started: now };
  }

  release(id) {
    this.#free.push(id);
  }
}

function slicesOf(listed) {
  return listed.split(' ').map((entry) => entry.split(':')) // name:units:bytes:segments
    .map(([name, , , segments]) => ({ name, segments: Number(segments) }));
}

// The names of a slice's segments to which the items of a call belong, in ascending order.
function segmentsOf({ name, segments }, { packed }, shards) {
  const found = new Set();
  for (let at = 0; at < packed.length; at += 16) {
    found.add(shardOf(packed.subarray(at, at + 16), shards * segments) % segments);
  }
  return [...found].sort((a, b) => a - b).map((number) => (number ? `${name}.${number}` : name));
}

function fields(reply) {
  const listed = Array.isArray(reply) ? reply : Object.entries(reply).flat();
  return Object.fromEntries(Array.from({ length: listed.length / 2 }, (_, i) => [listed[2 * i], listed[2 * i + 1]]));
}

function isReply(error) {
  return error.name === 'ReplyError';
}

function wordOf(error) {
  return isReply(error) ? error.message.split(' ', 1)[0] : '';
}
