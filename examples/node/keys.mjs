// Which shard an item belongs to, and the names of a shard's keys.

const SLOTS = 16384; // of a Redis Cluster

/** The shard of a digest: floor(x S / 4096) of S shards, x being the top 12 bits of its last 32-bit word. */
export function shardOf(digest, shards) {
  return ((digest.readUInt32LE(12) >>> 20) * shards) >>> 12;
}

/** The beginning of all keys of a shard: prefix:{name:shard}: or prefix:{name:shard-salt}: */
export function baseOf(prefix, name, shard, shards) {
  return `${prefix}:{${spreadTag(name, shard, shards)}}:`;
}

/** The first of name:shard, name:shard-1, name:shard-2 … whose Redis Cluster slot is in the shard's group. */
export function spreadTag(name, shard, shards) {
  const first = Math.floor(((crc16(`${name}:0`) % SLOTS) * shards) / SLOTS);
  const group = (first + shard) % shards;
  const inGroup = (tag) => Math.floor(((crc16(tag) % SLOTS) * shards) / SLOTS) === group;
  let tag = `${name}:${shard}`;
  for (let salt = 1; !inGroup(tag); salt++) tag = `${name}:${shard}-${salt}`;
  return tag;
}

// CRC-16/XMODEM: polynomial 0x1021, from 0.
export function crc16(text) {
  let crc = 0;
  for (const byte of Buffer.from(text)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc;
}
