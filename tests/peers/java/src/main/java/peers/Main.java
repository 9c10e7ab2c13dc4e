package peers;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A client of the scripts' protocol, written from docs/reference/protocol.md, for tests.
 *
 * <p>{@code check SCRIPTS} compares what it computes with the known answers. {@code serve SCRIPTS ADDRESS… NAME} opens
 * a filter, and does what lines of JSON tell; several ADDRESSes: a cluster. It takes text and bytes for items, and works
 * on filters without a normalisation.
 */
public final class Main {
    private static int compared;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 2 && arguments[0].equals("check")) {
            check(Path.of(arguments[1]));
        } else if (arguments.length >= 4 && arguments[0].equals("serve")) {
            int last = arguments.length - 1;
            serve(Path.of(arguments[1]), Arrays.asList(arguments).subList(2, last), arguments[last]);
        } else {
            throw new IllegalArgumentException("usage: check SCRIPTS, or serve SCRIPTS ADDRESS… NAME");
        }
    }

    private static UnifiedJedis connect(List<String> addresses) {
        var config = DefaultJedisClientConfig.builder().connectionTimeoutMillis(1000).socketTimeoutMillis(1500).build();
        if (addresses.size() == 1) {
            return RedisClient.builder().hostAndPort(HostAndPort.from(addresses.get(0))).clientConfig(config).build();
        }
        Set<HostAndPort> nodes = new HashSet<>();
        addresses.forEach(each -> nodes.add(HostAndPort.from(each)));
        return RedisClusterClient.builder().nodes(nodes).clientConfig(config).build();
    }

    private static void serve(Path folder, List<String> addresses, String name) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Filter filter = null;
        try (UnifiedJedis redis = connect(addresses)) {
            for (String line; (line = lines.readLine()) != null; ) {
                JsonObject told = JsonParser.parseString(line).getAsJsonObject();
                Map<String, Object> said;
                try {
                    if (filter == null) {
                        filter = new Filter(redis, folder, name);
                    }
                    filter.behind = told.get("behind").getAsLong();
                    List<byte[]> items = told.getAsJsonArray("items").asList().stream().map(Main::bytesOf).toList();
                    said = Map.of("answers", filter.ask(told.get("what").getAsString(), items, told.get("maxAge").getAsInt()));
                } catch (FilterError error) {
                    said = Map.of("error", error.getMessage(), "kind", error.lost ? "AnswerLost" : "FilterError");
                } catch (JedisException error) {
                    said = Map.of("error", String.valueOf(error.getMessage()), "kind", "FilterError");
                }
                out.println(new Gson().toJson(said));
            }
        }
    }

    private static byte[] bytesOf(JsonElement item) {
        if (item.isJsonObject()) {
            return HexFormat.of().parseHex(item.getAsJsonObject().get("$bytes").getAsString());
        }
        return Items.bytesOf(item.getAsString());
    }

    private static void check(Path folder) throws IOException {
        JsonObject known = JsonParser.parseString(Files.readString(folder.resolve("vectors.json"))).getAsJsonObject();
        for (JsonElement each : known.getAsJsonArray("digests")) {
            JsonObject vector = each.getAsJsonObject();
            byte[] data = HexFormat.of().parseHex(text(vector, "bytes"));
            digest("md5", "", data, text(vector, "md5"));
            for (String hash : List.of("mmh3", "blake2b")) {
                vector.getAsJsonObject(hash).entrySet()
                        .forEach(pair -> digest(hash, pair.getKey(), data, pair.getValue().getAsString()));
            }
        }
        for (JsonElement each : known.getAsJsonArray("items")) {
            JsonObject vector = each.getAsJsonObject();
            digest("md5", "", Items.bytesOf(text(vector, "uri")), text(vector, "digest"));
            byte[] digest = HexFormat.of().parseHex(text(vector, "digest"));
            expect(Keys.shardOf(digest, 7), vector.get("shard_of_7").getAsInt());
            expect(Keys.shardOf(digest, 4096), vector.get("shard_of_4096").getAsInt());
        }
        for (JsonElement each : known.getAsJsonArray("encoded")) {
            JsonObject vector = each.getAsJsonObject();
            if (vector.get("item").isJsonPrimitive() && vector.getAsJsonPrimitive("item").isString()) {
                expect(HexFormat.of().formatHex(Items.bytesOf(text(vector, "item"))), text(vector, "bytes"));
            }
        }
        for (JsonElement each : known.getAsJsonArray("tags")) {
            JsonObject vector = each.getAsJsonObject();
            String name = text(vector, "name");
            int shards = vector.get("shards").getAsInt();
            expect(Keys.slotOf(name + ":0"), vector.get("slot_of_shard_0").getAsInt());
            vector.getAsJsonObject("tags").entrySet().forEach(pair ->
                    expect(Keys.tagOf(name, Integer.parseInt(pair.getKey()), shards), pair.getValue().getAsString()));
        }
        System.out.println("the known answers: " + compared + " are right");
    }

    private static String text(JsonObject of, String field) {
        return of.get(field).getAsString();
    }

    private static void digest(String hash, String seed, byte[] data, String wanted) {
        expect(HexFormat.of().formatHex(Items.hasher(hash, seed).apply(data)), wanted);
    }

    private static void expect(Object found, Object wanted) {
        compared++;
        if (!found.equals(wanted)) {
            throw new AssertionError(found + " is not " + wanted);
        }
    }
}
