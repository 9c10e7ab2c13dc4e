package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	format    = "1" // the one that the exported scripts work on
	callLife  = 60_000
	proofLife = 480_000 // ms for which the record of a call is certainly kept
	patience  = 3 * time.Second
)

var died = regexp.MustCompile(`^ERR .*(user_script|Error running script)`)

// errLost says that a call may have run, and that its answer did not arrive.
var errLost = errors.New("the answer is lost")

type script struct {
	File string `json:"file"`
	SHA1 string `json:"sha1"`
}

type slice struct {
	name     string
	segments int
}

// filter is an open filter; one goroutine at a time may use it.
type filter struct {
	redis   redis.UniversalClient
	folder  string
	scripts map[string]script

	prefix, name, uid, layout string
	shards, limit             int
	digest                    func([]byte) []byte

	bases  map[int]string
	slices map[int][]slice

	client         string
	slot, sequence int
	opened         time.Time // with a monotonic reading
	openedAt       int64     // the server's time then, ms
	behind         int64     // ms, for tests
}

// call is a call of a script for items of one shard.
type call struct {
	command string
	shard   int
	digests [][]byte
	at      []int // the items' places in the caller's list
	maxAge  int
	id      string
	started int64
	inDoubt bool
}

func open(client redis.UniversalClient, folder, name string) (*filter, error) {
	text, err := os.ReadFile(filepath.Join(folder, "scripts.json"))
	if err != nil {
		return nil, err
	}
	var index struct {
		Scripts map[string]script `json:"scripts"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, err
	}
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	made := &filter{
		redis: client, folder: folder, scripts: index.Scripts, prefix: "urifilter", name: name,
		bases: map[int]string{}, slices: map[int][]slice{}, client: fmt.Sprintf("%x", random),
	}
	return made, made.readMeta()
}

func (f *filter) readMeta() error {
	ctx := context.Background()
	meta, err := f.redis.HGetAll(ctx, f.prefix+":{"+f.name+":0}:meta").Result()
	switch {
	case err != nil:
		return err
	case meta["uid"] == "" || meta["phase"] == "dropping":
		return errors.New("NOFILTER there is no filter of this name")
	case meta["format"] != format:
		return errors.New("FORMAT is " + meta["format"])
	case meta["phase"] == "creating":
		return errors.New(`CREATING the filter is half made: repeat "urifilter create"`)
	case meta["normalize"] != "none":
		return fmt.Errorf("normalize is %s, which this client does not know", meta["normalize"])
	}
	f.uid, f.layout, f.limit = meta["uid"], meta["layout"], math.MaxInt
	if f.layout == "blocked" {
		f.layout += "-" + meta["k"]
	}
	if f.shards, err = strconv.Atoi(meta["shards"]); err != nil {
		return err
	}
	if text, growing := meta["limit"]; growing {
		if f.limit, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	if f.digest, err = hasher(meta["hash"], meta["seed"]); err != nil {
		return err
	}
	if f.slices[0], err = slicesOf(meta["slices"]); err != nil {
		return err
	}
	now, err := f.redis.Time(ctx).Result()
	f.learnTime(now.UnixMilli())
	return err
}

func (f *filter) learnTime(now int64) { f.opened, f.openedAt = time.Now(), now }

// now returns the server's time, ms.
func (f *filter) now() int64 { return f.openedAt + time.Since(f.opened).Milliseconds() - f.behind }

// ask calls a script for items, and returns an answer for each.
func (f *filter) ask(command string, items [][]byte, maxAge int) ([]int64, error) {
	if _, known := f.scripts[command+":"+f.layout]; !known {
		return nil, fmt.Errorf("BADARG %s is not for layout %s", command, f.layout)
	}
	answers := make([]int64, len(items))
	for _, each := range f.calls(command, items, maxAge) {
		found, err := f.settle(each)
		if err != nil {
			return nil, err
		}
		for n, at := range each.at {
			answers[at] = found[n]
		}
	}
	return answers, nil
}

// calls cuts a list into calls, each for items of one shard, and of few segments.
func (f *filter) calls(command string, items [][]byte, maxAge int) []*call {
	digests := make([][]byte, len(items))
	order := make([]int, len(items))
	for at, item := range items {
		digests[at], order[at] = f.digest(item), at
	}
	slices.SortStableFunc(order, func(a, b int) int { return shardOf(digests[a], 4096) - shardOf(digests[b], 4096) })
	made := []*call{}
	for _, at := range order {
		shard := shardOf(digests[at], f.shards)
		most := max(1, min(500, 2000/len(f.live(shard)), f.limit))
		last := len(made) - 1
		if last < 0 || made[last].shard != shard || len(made[last].at) == most {
			made = append(made, &call{command: command, shard: shard, maxAge: maxAge})
			last++
		}
		made[last].digests = append(made[last].digests, digests[at])
		made[last].at = append(made[last].at, at)
	}
	return made
}

// settle sends one call until it is answered, under one id.
func (f *filter) settle(c *call) ([]int64, error) {
	writes := c.command != "contains"
	c.id = "-"
	if writes {
		f.draw(c)
	}
	for until := time.Now().Add(patience); ; {
		before := c.inDoubt
		c.inDoubt = writes
		answers, err := f.send(c)
		if err == nil {
			return answers, nil
		}
		if isReply(err) && !died.MatchString(err.Error()) {
			c.inDoubt = before
		}
		if !f.again(c, err) || time.Now().After(until) {
			if c.inDoubt {
				f.slot, f.sequence = f.slot+1, 0 // nobody uses the slot of a call that may still run
				return nil, fmt.Errorf("%w: %w", errLost, err)
			}
			return nil, err
		}
	}
}

// draw gives a call the next id of the slot.
func (f *filter) draw(c *call) {
	f.sequence++
	c.started = f.now()
	c.id = fmt.Sprintf("%s/%d/%d/%d", f.client, f.slot, f.sequence, c.started+callLife)
}

func (f *filter) send(c *call) ([]int64, error) {
	keys := []string{"meta", "replies", "forgotten"}
	if c.command == "contains" {
		keys = []string{"meta", "forgotten"}
	}
	for _, each := range f.live(c.shard) {
		keys = append(keys, f.segmentsOf(each, c)...)
	}
	for n := range keys {
		keys[n] = f.base(c.shard) + keys[n]
	}
	packed := slices.Concat(c.digests...)
	return f.redis.EvalSha(context.Background(), f.scripts[c.command+":"+f.layout].SHA1, keys, f.uid, c.id, c.maxAge, "bin", packed).Int64Slice()
}

// again prepares another attempt after an error, and says whether there is any use in one.
func (f *filter) again(c *call, err error) bool {
	word, rest, _ := strings.Cut(err.Error(), " ")
	switch {
	case !isReply(err), slices.Contains(
		[]string{"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "RESTORING", "TRYAGAIN"}, word):
		time.Sleep(50 * time.Millisecond)
		return true
	case word == "NOSCRIPT":
		source, err := os.ReadFile(filepath.Join(f.folder, f.scripts[c.command+":"+f.layout].File))
		if err != nil {
			return false
		}
		err = f.redis.ScriptLoad(context.Background(), string(source)).Err() // in a cluster, to all masters
		return err == nil || !isReply(err)
	case word == "STALE" && strings.Contains(rest, ", claims 0,"):
		_, listed, _ := strings.Cut(rest, "live slices ")
		f.slices[c.shard], err = slicesOf(listed)
		return err == nil
	case word == "LATECALL":
		text, _, _ := strings.Cut(rest, " ")
		now, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return false
		}
		f.learnTime(now + f.behind)
		if c.inDoubt && !(c.started+callLife <= now && now < c.started+proofLife) {
			return false
		}
		f.draw(c)
		c.inDoubt = false
		return true
	}
	return false
}

// live returns a shard's live slices, oldest first, as they were last read; at first those of shard 0.
func (f *filter) live(shard int) []slice {
	if known, ok := f.slices[shard]; ok {
		return known
	}
	return f.slices[0]
}

func (f *filter) base(shard int) string {
	if _, known := f.bases[shard]; !known {
		f.bases[shard] = f.prefix + ":{" + tagOf(f.name, shard, f.shards) + "}:"
	}
	return f.bases[shard]
}

// segmentsOf returns the names of a slice's segments to which the items of a call belong, in ascending order.
func (f *filter) segmentsOf(of slice, c *call) []string {
	numbers := []int{}
	for _, digest := range c.digests {
		numbers = append(numbers, segmentOf(digest, f.shards, of.segments))
	}
	slices.Sort(numbers)
	names := []string{}
	for _, number := range slices.Compact(numbers) {
		if number == 0 {
			names = append(names, of.name)
		} else {
			names = append(names, fmt.Sprintf("%s.%d", of.name, number))
		}
	}
	return names
}

// slicesOf reads a list of slices: name:units:bytes:segments, separated by spaces.
func slicesOf(listed string) ([]slice, error) {
	found := []slice{}
	for _, each := range strings.Fields(listed) {
		fields := strings.Split(each, ":")
		if len(fields) != 4 {
			return nil, fmt.Errorf("%q is no slice", each)
		}
		segments, err := strconv.Atoi(fields[3])
		if err != nil {
			return nil, err
		}
		found = append(found, slice{fields[0], segments})
	}
	return found, nil
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}
