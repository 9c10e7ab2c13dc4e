package peers;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/** Which shard a digest belongs to, and the names of a shard's keys. */
final class Keys {
    static final int SLOTS = 16384; // of a Redis Cluster

    private Keys() {}

    static int shardOf(byte[] digest, int shards) {
        long x = ByteBuffer.wrap(digest).order(ByteOrder.LITTLE_ENDIAN).getInt(12) >>> 20;
        return (int) (x * shards >> 12);
    }

    /** The number of a digest's segment, of so many that each slice of a shard has. */
    static int segmentOf(byte[] digest, int shards, int segments) {
        return shardOf(digest, shards * segments) % segments;
    }

    /** The tag of a shard: the first of name:s, name:s-1 … whose slot is in the shard's group. */
    static String tagOf(String name, int shard, int shards) {
        int wanted = (groupOf(name + ":0", shards) + shard) % shards;
        String tag = name + ":" + shard;
        for (int salt = 1; groupOf(tag, shards) != wanted; salt++) {
            tag = name + ":" + shard + "-" + salt;
        }
        return tag;
    }

    private static int groupOf(String tag, int shards) {
        return slotOf(tag) * shards / SLOTS;
    }

    /** CRC-16/XMODEM (polynomial 0x1021, from 0), modulo the slots. */
    static int slotOf(String text) {
        int crc = 0;
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            crc ^= (each & 0xff) << 8;
            for (int bit = 0; bit < 8; bit++) {
                crc = (crc << 1 ^ ((crc & 0x8000) != 0 ? 0x1021 : 0)) & 0xffff;
            }
        }
        return crc % SLOTS;
    }
}
