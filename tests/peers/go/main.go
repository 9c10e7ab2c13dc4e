// Program client is a client of the scripts' protocol, written from docs/reference/protocol.md, for tests.
//
//	client check SCRIPTS                  compares what it computes with the known answers
//	client serve SCRIPTS ADDRESS… NAME    opens a filter, and does what lines of JSON tell; several ADDRESSes: a cluster
//
// It takes text and bytes for items, and works on filters without a normalisation.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

func main() {
	log.SetFlags(0)
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) == 2 && arguments[0] == "check":
		err = check(arguments[1])
	case len(arguments) >= 4 && arguments[0] == "serve":
		last := len(arguments) - 1
		err = serve(arguments[1], arguments[2:last], arguments[last])
	default:
		err = errors.New("usage: client check SCRIPTS, or client serve SCRIPTS ADDRESS… NAME")
	}
	if err != nil {
		log.Fatal(err)
	}
}

func connect(addresses []string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addresses, Protocol: 2, DialTimeout: time.Second, ReadTimeout: 1500 * time.Millisecond, MaxRetries: -1,
	})
}

// line is what a test tells; bytes are {"$bytes": HEX}.
type line struct {
	What   string            `json:"what"`
	Items  []json.RawMessage `json:"items"`
	MaxAge int               `json:"maxAge"`
	Behind int64             `json:"behind"`
}

type said struct {
	Answers []int64 `json:"answers"`
	Error   string  `json:"error,omitempty"`
	Kind    string  `json:"kind,omitempty"`
}

func serve(folder string, addresses []string, name string) error {
	client := connect(addresses)
	defer client.Close()
	var opened *filter
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var told line
		if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
			return err
		}
		var answer said
		err := error(nil)
		if opened == nil {
			opened, err = open(client, folder, name)
		}
		if err == nil {
			answer.Answers, err = do(opened, told)
		} else {
			opened = nil
		}
		if err != nil {
			answer.Error, answer.Kind = err.Error(), "FilterError"
			if errors.Is(err, errLost) {
				answer.Kind = "AnswerLost"
			}
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return lines.Err()
}

func do(f *filter, told line) ([]int64, error) {
	items := make([][]byte, len(told.Items))
	for n, each := range told.Items {
		var err error
		if items[n], err = bytesOf(each); err != nil {
			return nil, err
		}
	}
	f.behind = told.Behind
	defer func() { f.behind = 0 }()
	return f.ask(told.What, items, told.MaxAge)
}

func bytesOf(item json.RawMessage) ([]byte, error) {
	var text string
	if json.Unmarshal(item, &text) == nil {
		return []byte(text), nil
	}
	var packed struct {
		Bytes string `json:"$bytes"`
	}
	if err := json.Unmarshal(item, &packed); err != nil {
		return nil, fmt.Errorf("%s is neither text nor bytes", item)
	}
	return hex.DecodeString(packed.Bytes)
}

// known is what vectors.json has for such a client.
type known struct {
	Items []struct {
		URI     string `json:"uri"`
		Digest  string `json:"digest"`
		Of7     int    `json:"shard_of_7"`
		OfEvery int    `json:"shard_of_4096"`
	} `json:"items"`
	Digests []struct {
		Bytes   string            `json:"bytes"`
		MMH3    map[string]string `json:"mmh3"`
		MD5     string            `json:"md5"`
		Blake2b map[string]string `json:"blake2b"`
	} `json:"digests"`
	Encoded []struct {
		Item  any    `json:"item"`
		Bytes string `json:"bytes"`
	} `json:"encoded"`
	Tags []struct {
		Name   string         `json:"name"`
		Shards int            `json:"shards"`
		Slot   int            `json:"slot_of_shard_0"`
		Tags   map[int]string `json:"tags"`
	} `json:"tags"`
}

func check(folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, "vectors.json"))
	if err != nil {
		return err
	}
	var vectors known
	if err := json.Unmarshal(text, &vectors); err != nil {
		return err
	}
	compared := 0
	expect := func(what string, found, wanted any) {
		compared++
		if fmt.Sprint(found) != fmt.Sprint(wanted) {
			err = errors.Join(err, fmt.Errorf("%s: %v is not %v", what, found, wanted))
		}
	}
	hashed := func(hash, seed, data, wanted string) {
		made, failure := hasher(hash, seed)
		bytes, other := hex.DecodeString(data)
		if err = errors.Join(err, failure, other); err == nil {
			expect(hash, hex.EncodeToString(made(bytes)), wanted)
		}
	}
	for _, each := range vectors.Digests {
		hashed("md5", "", each.Bytes, each.MD5)
		for seed, digest := range each.MMH3 {
			hashed("mmh3", seed, each.Bytes, digest)
		}
		for key, digest := range each.Blake2b {
			hashed("blake2b", key, each.Bytes, digest)
		}
	}
	for _, each := range vectors.Items {
		hashed("md5", "", hex.EncodeToString([]byte(each.URI)), each.Digest)
		digest, _ := hex.DecodeString(each.Digest)
		expect(each.URI, shardOf(digest, 7), each.Of7)
		expect(each.URI, shardOf(digest, 4096), each.OfEvery)
	}
	for _, each := range vectors.Encoded {
		if item, isText := each.Item.(string); isText && !hasHalves(item) {
			expect(item, hex.EncodeToString([]byte(item)), each.Bytes)
		}
	}
	for _, each := range vectors.Tags {
		expect(each.Name, int(crc16(each.Name+":0"))%slots, each.Slot)
		for shard, tag := range each.Tags {
			expect(each.Name, tagOf(each.Name, shard, each.Shards), tag)
		}
	}
	if err == nil {
		fmt.Printf("the known answers: %d are right\n", compared)
	}
	return err
}

// hasHalves says whether a text of JSON had half a surrogate pair, which no text of Go can have.
func hasHalves(text string) bool {
	for _, each := range text {
		if each == utf8.RuneError {
			return true
		}
	}
	return false
}
