package peers;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.function.UnaryOperator;
import org.apache.commons.codec.digest.MurmurHash3;
import org.bouncycastle.crypto.digests.Blake2bDigest;

/** How an item becomes a digest. */
final class Items {
    private Items() {}

    /** UTF-8; half a surrogate pair becomes three bytes, where Java would write a question mark. */
    static byte[] bytesOf(String text) {
        var made = new ByteArrayOutputStream();
        text.codePoints().forEach(code -> {
            boolean half = code >= 0xd800 && code <= 0xdfff;
            byte[] bytes = half
                    ? new byte[] {(byte) (0xe0 | code >> 12), (byte) (0x80 | code >> 6 & 63), (byte) (0x80 | code & 63)}
                    : Character.toString(code).getBytes(StandardCharsets.UTF_8);
            made.writeBytes(bytes);
        });
        return made.toByteArray();
    }

    static UnaryOperator<byte[]> hasher(String hash, String seed) {
        switch (hash) {
            case "mmh3":
                int number = Integer.parseUnsignedInt(seed);
                return data -> {
                    long[] halves = MurmurHash3.hash128x64(data, 0, data.length, number);
                    var digest = ByteBuffer.allocate(16).order(ByteOrder.LITTLE_ENDIAN);
                    return digest.putLong(halves[0]).putLong(halves[1]).array();
                };
            case "md5":
                return Items::md5;
            case "blake2b":
                byte[] key = HexFormat.of().parseHex(seed);
                return data -> {
                    var hashing = new Blake2bDigest(key, 16, null, null);
                    hashing.update(data, 0, data.length);
                    byte[] digest = new byte[16];
                    hashing.doFinal(digest, 0);
                    return digest;
                };
            default:
                throw new FilterError("hash is " + hash + ", which this client does not know");
        }
    }

    private static byte[] md5(byte[] data) {
        try {
            return MessageDigest.getInstance("MD5").digest(data);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
