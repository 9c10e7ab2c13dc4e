package peers;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/** An open filter; one thread at a time may use it. */
final class Filter {
    private static final String FORMAT = "1"; // the one that the exported scripts work on
    private static final long CALL_LIFE = 60_000;
    private static final long PROOF_LIFE = 480_000; // ms for which the record of a call is certainly kept
    private static final long PATIENCE = 3_000; // ms
    private static final Set<String> AGAIN =
            Set.of("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "RESTORING", "TRYAGAIN");
    private static final Pattern DIED = Pattern.compile("^ERR .*(user_script|Error running script)");

    private record Slice(String name, int segments) {}

    /** A call of a script for items of one shard. */
    private static final class Call {
        final String command;
        final int shard;
        final int maxAge;
        final List<byte[]> digests = new ArrayList<>();
        final List<Integer> at = new ArrayList<>(); // the items' places in the caller's list
        String id = "-";
        long started;
        boolean inDoubt;

        Call(String command, int shard, int maxAge) {
            this.command = command;
            this.shard = shard;
            this.maxAge = maxAge;
        }
    }

    private final UnifiedJedis redis;
    private final Path folder;
    private final String prefix = "urifilter";
    private final String name;
    private final JsonObject scripts;
    private final String uid;
    private final String layout;
    private final int shards;
    private final int limit;
    private final UnaryOperator<byte[]> digest;
    private final Map<Integer, String> bases = new HashMap<>();
    private final Map<Integer, List<Slice>> slices = new HashMap<>();
    private final String client;
    private int slot;
    private long sequence;
    private long ahead; // ms from the monotonic clock to the server's
    long behind; // ms, for tests

    Filter(UnifiedJedis redis, Path folder, String name) throws IOException {
        this.redis = redis;
        this.folder = folder;
        this.name = name;
        scripts = JsonParser.parseString(Files.readString(folder.resolve("scripts.json"))).getAsJsonObject()
                .getAsJsonObject("scripts");
        byte[] random = new byte[8];
        new SecureRandom().nextBytes(random);
        client = HexFormat.of().formatHex(random);
        Map<String, String> meta = redis.hgetAll(prefix + ":{" + name + ":0}:meta");
        refuse(meta);
        uid = meta.get("uid");
        layout = meta.get("layout") + (meta.get("layout").equals("blocked") ? "-" + meta.get("k") : "");
        shards = Integer.parseInt(meta.get("shards"));
        limit = Integer.parseInt(meta.getOrDefault("limit", Integer.toString(Integer.MAX_VALUE)));
        digest = Items.hasher(meta.get("hash"), meta.get("seed"));
        slices.put(0, slicesOf(meta.get("slices")));
        // A cluster's client of Jedis sends only what has a key, which TIME has not.
        var time = (List<?>) redis.eval("return redis.call('TIME')", 1, prefix + ":{" + name + ":0}:meta");
        long[] parts = time.stream().mapToLong(each -> Long.parseLong((String) each)).toArray();
        learnTime(parts[0] * 1000 + parts[1] / 1000);
    }

    private static void refuse(Map<String, String> meta) {
        String phase = meta.getOrDefault("phase", "");
        if (meta.getOrDefault("uid", "").isEmpty() || phase.equals("dropping")) {
            throw new FilterError("NOFILTER there is no filter of this name");
        }
        if (!FORMAT.equals(meta.get("format"))) {
            throw new FilterError("FORMAT is " + meta.get("format"));
        }
        if (phase.equals("creating")) {
            throw new FilterError("CREATING the filter is half made: repeat \"urifilter create\"");
        }
        if (!meta.get("normalize").equals("none")) {
            throw new FilterError("normalize is " + meta.get("normalize") + ", which this client does not know");
        }
    }

    /** Calls a script for items; returns an answer for each. */
    long[] ask(String command, List<byte[]> items, int maxAge) throws IOException, InterruptedException {
        long[] answers = new long[items.size()];
        for (Call call : calls(command, items, maxAge)) {
            List<?> found = settle(call);
            for (int n = 0; n < found.size(); n++) {
                answers[call.at.get(n)] = (Long) found.get(n);
            }
        }
        return answers;
    }

    /** Cuts a list into calls, each for items of one shard, and of few segments. */
    private List<Call> calls(String command, List<byte[]> items, int maxAge) {
        List<byte[]> digests = items.stream().map(digest).toList();
        List<Integer> order = IntStream.range(0, items.size()).boxed()
                .sorted(Comparator.comparingInt(at -> Keys.shardOf(digests.get(at), 4096))).toList();
        List<Call> made = new ArrayList<>();
        Call last = null;
        for (int at : order) {
            int shard = Keys.shardOf(digests.get(at), shards);
            int most = Math.max(1, Math.min(Math.min(500, 2000 / live(shard).size()), limit));
            if (last == null || last.shard != shard || last.at.size() == most) {
                last = new Call(command, shard, maxAge);
                made.add(last);
            }
            last.digests.add(digests.get(at));
            last.at.add(at);
        }
        return made;
    }

    /** Sends one call until it is answered, under one id. */
    private List<?> settle(Call call) throws IOException, InterruptedException {
        boolean writes = !call.command.equals("contains");
        if (writes) {
            draw(call);
        }
        for (long until = clock() + PATIENCE; ; ) {
            boolean before = call.inDoubt;
            call.inDoubt = writes;
            try {
                return send(call);
            } catch (JedisException error) {
                String text = String.valueOf(error.getMessage());
                boolean reply = error instanceof JedisDataException;
                if (reply && !DIED.matcher(text).find()) {
                    call.inDoubt = before;
                }
                if (!again(call, reply, text) || clock() > until) {
                    if (call.inDoubt) {
                        slot++; // nobody uses the slot of a call that may still run
                        sequence = 0;
                    }
                    throw new FilterError(text, call.inDoubt);
                }
            }
        }
    }

    private List<?> send(Call call) {
        boolean reads = call.command.equals("contains");
        List<String> names = new ArrayList<>(reads ? List.of("meta", "forgotten") : List.of("meta", "replies", "forgotten"));
        live(call.shard).forEach(slice -> names.addAll(segmentsOf(slice, call)));
        String base = bases.computeIfAbsent(call.shard, shard -> prefix + ":{" + Keys.tagOf(name, shard, shards) + "}:");
        List<byte[]> keys = names.stream().map(each -> ascii(base + each)).toList();
        byte[] packed = new byte[16 * call.digests.size()];
        for (int n = 0; n < call.digests.size(); n++) {
            System.arraycopy(call.digests.get(n), 0, packed, 16 * n, 16);
        }
        List<byte[]> arguments =
                List.of(ascii(uid), ascii(call.id), ascii(Integer.toString(call.maxAge)), ascii("bin"), packed);
        return (List<?>) redis.evalsha(ascii(script(call).get("sha1").getAsString()), keys, arguments);
    }

    /** Prepares another attempt after an error; returns whether there is any use in one. */
    private boolean again(Call call, boolean reply, String text) throws IOException, InterruptedException {
        String[] words = text.split(" ", 3);
        if (!reply || AGAIN.contains(words[0])) {
            Thread.sleep(50);
            return true;
        }
        switch (words[0]) {
            case "NOSCRIPT":
                String source = Files.readString(folder.resolve(script(call).get("file").getAsString()));
                try {
                    redis.scriptLoad(source, "{" + Keys.tagOf(name, call.shard, shards) + "}"); // to the node of these keys
                } catch (JedisDataException error) {
                    return false;
                } catch (JedisException error) {
                    Thread.sleep(50);
                }
                return true;
            case "STALE":
                if (!text.contains(", claims 0,")) {
                    return false; // this client has no scripts for shards with claims
                }
                slices.put(call.shard, slicesOf(text.split("live slices ", 2)[1]));
                return true;
            case "LATECALL":
                long now = Long.parseLong(words[1]);
                learnTime(now + behind);
                boolean nothingHappened = call.started + CALL_LIFE <= now && now < call.started + PROOF_LIFE;
                if (call.inDoubt && !nothingHappened) {
                    return false;
                }
                draw(call);
                call.inDoubt = false;
                return true;
            default:
                return false; // NOFILTER, MISMATCH, FORMAT, LOST, FULL, OLDCALL, BADARG, NOPERM, OOM …
        }
    }

    /** Gives a call the next id of the slot. */
    private void draw(Call call) {
        call.started = clock() + ahead - behind;
        call.id = client + "/" + slot + "/" + ++sequence + "/" + (call.started + CALL_LIFE);
    }

    private void learnTime(long now) {
        ahead = now - clock();
    }

    private static long clock() {
        return System.nanoTime() / 1_000_000;
    }

    private JsonObject script(Call call) {
        JsonObject found = scripts.getAsJsonObject(call.command + ":" + layout);
        if (found == null) {
            throw new FilterError("BADARG " + call.command + " is not for layout " + layout);
        }
        return found;
    }

    /** A shard's live slices, oldest first, as they were last read; at first those of shard 0. */
    private List<Slice> live(int shard) {
        return slices.getOrDefault(shard, slices.get(0));
    }

    /** The names of a slice's segments to which the items of a call belong, in ascending order. */
    private List<String> segmentsOf(Slice slice, Call call) {
        var numbers = new TreeSet<Integer>();
        call.digests.forEach(each -> numbers.add(Keys.segmentOf(each, shards, slice.segments)));
        return numbers.stream().map(number -> number == 0 ? slice.name : slice.name + "." + number).toList();
    }

    /** Reads a list of slices: name:units:bytes:segments, separated by spaces. */
    private static List<Slice> slicesOf(String listed) {
        return Arrays.stream(listed.strip().split(" ")).map(each -> each.split(":"))
                .map(fields -> new Slice(fields[0], Integer.parseInt(fields[3]))).toList();
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
