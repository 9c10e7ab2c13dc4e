package main

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/spaolacci/murmur3"
	"golang.org/x/crypto/blake2b"
)

// hasher returns the function that makes digests of items' bytes.
func hasher(hash, seed string) (func([]byte) []byte, error) {
	switch hash {
	case "mmh3":
		number, err := strconv.ParseUint(seed, 10, 32)
		return func(data []byte) []byte { return murmur(data, uint32(number)) }, err
	case "md5":
		return func(data []byte) []byte { sum := md5.Sum(data); return sum[:] }, nil
	case "blake2b":
		key, err := hex.DecodeString(seed)
		if err != nil {
			return nil, err
		}
		_, err = blake2b.New(16, key)
		return func(data []byte) []byte {
			made, _ := blake2b.New(16, key) // this key was tried
			made.Write(data)
			return made.Sum(nil)
		}, err
	}
	return nil, fmt.Errorf("hash is %s, which this client does not know", hash)
}

func murmur(data []byte, seed uint32) []byte {
	h1, h2 := murmur3.Sum128WithSeed(data, seed)
	digest := binary.LittleEndian.AppendUint64(nil, h1)
	return binary.LittleEndian.AppendUint64(digest, h2)
}
