// node check.mjs SCRIPTS [REDIS NAME]: check this client against the known answers, and against a filter of a server.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { join } from 'node:path';
import { AnswerLost, FilterError, UriFilter } from './filter.mjs';
import { bytesOf, hasher, normalizer } from './items.mjs';
import { crc16, shardOf, spreadTag } from './keys.mjs';

const [scripts, redis, name] = process.argv.slice(2);
if (!scripts) throw new Error('usage: node check.mjs SCRIPTS [REDIS NAME]');

function checkVectors(known) {
  for (const { item, bytes, beyond_javascript: beyond } of known.encoded) {
    if (!beyond) assert.equal(bytesOf(item).toString('hex'), bytes, JSON.stringify(item));
  }
  for (const { bytes, mmh3, md5, blake2b } of known.digests) {
    const data = Buffer.from(bytes, 'hex');
    for (const [hash, seeds] of Object.entries({ mmh3, md5: { '': md5 }, blake2b })) {
      for (const [seed, digest] of Object.entries(seeds)) {
        assert.equal(hasher(hash, seed)(data).toString('hex'), digest, hash);
      }
    }
  }
  for (const { uri, digest, shard_of_7: of7, shard_of_4096: of4096 } of known.items) {
    const made = hasher('md5', '')(bytesOf(uri));
    assert.deepEqual([made.toString('hex'), shardOf(made, 7), shardOf(made, 4096)], [digest, of7, of4096], uri);
  }
  for (const { item, ...spellings } of known.normalized) {
    for (const [way, spelling] of Object.entries(spellings)) assert.equal(normalizer(way, known)(item), spelling, way);
  }
  for (const { normalize, rules, spellings } of known.ruled) {
    const spelled = normalizer(normalize, known, rules);
    for (const { item, spelling } of spellings) assert.equal(spelled(item), spelling, rules);
  }
  for (const { name: filter, shards, slot_of_shard_0: slot, tags } of known.tags) {
    assert.equal(crc16(`${filter}:0`) % 16384, slot);
    for (const [shard, tag] of Object.entries(tags)) assert.equal(spreadTag(filter, Number(shard), shards), tag);
  }
}

// A server between client and Redis. `cut()` breaks the connection when the next EVALSHA has been answered.
async function startCutter(url) {
  const { hostname, port } = new URL(url);
  let armed = false;
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(port) || 6379, hostname);
    let cutting = false;
    client.on('data', (data) => {
      if (armed && data.includes('EVALSHA')) [armed, cutting] = [false, true];
      upstream.write(data);
    });
    upstream.on('data', (data) => (cutting ? client.destroy() : client.write(data)));
    for (const [one, other] of [[client, upstream], [upstream, client]]) {
      one.on('error', () => {});
      one.on('close', () => other.destroy());
    }
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  const through = new URL(url);
  [through.hostname, through.port] = ['127.0.0.1', server.address().port];
  return { url: through.href, cut: () => { armed = true; }, wasCut: () => !armed, stop: () => server.close() };
}

async function checkFilter() {
  const cutter = await startCutter(redis);
  const filter = await UriFilter.open(name, { redis: cutter.url, scripts });
  const unused = String(process.hrtime.bigint());
  const items = [`https://example.com/${unused}`, Buffer.from(unused), [unused]];
  try {
    assert.deepEqual(await filter.contains(items), [0, 0, 0]);
    assert.deepEqual(await filter.insert(items.slice(1)), [0, 0]);
    cutter.cut();
    assert.deepEqual(await filter.insert(items.slice(0, 1)), [0], 'a call whose reply was lost gets its answer again');
    assert.ok(cutter.wasCut());
    assert.ok((await filter.insert(items)).every((age) => age > 0));
    assert.deepEqual(await filter.forget(items.slice(0, 2)), [1, 1]);
    assert.deepEqual((await filter.contains(items)).map((age) => age > 0), [false, false, true]);
    const absent = UriFilter.open(`${name}-${unused}`, { redis, scripts });
    await assert.rejects(absent, { constructor: FilterError, word: 'NOFILTER' });
  } catch (error) {
    if (error instanceof AnswerLost) console.error('the server was away for too long: filter.retry(error) asks again');
    throw error;
  } finally {
    filter.close();
    cutter.stop();
  }
}

checkVectors(JSON.parse(readFileSync(join(scripts, 'vectors.json'))));
console.log('the known answers: right');
if (name) {
  await checkFilter();
  console.log(`the filter ${name}: right; a lost reply came again`);
}
