package main

import (
	"encoding/binary"
	"fmt"
)

const slots = 16384 // of a Redis Cluster

// shardOf returns the shard of a digest.
func shardOf(digest []byte, shards int) int {
	x := int(binary.LittleEndian.Uint32(digest[12:]) >> 20)
	return x * shards >> 12
}

// segmentOf returns the number of a digest's segment, of so many that each slice of a shard has.
func segmentOf(digest []byte, shards, segments int) int {
	return shardOf(digest, shards*segments) % segments
}

// tagOf returns the tag of a shard: the first of name:s, name:s-1 … whose slot is in the shard's group.
func tagOf(name string, shard, shards int) string {
	group := func(tag string) int { return int(crc16(tag)) % slots * shards / slots }
	wanted := (group(name+":0") + shard) % shards
	tag := fmt.Sprintf("%s:%d", name, shard)
	for salt := 1; group(tag) != wanted; salt++ {
		tag = fmt.Sprintf("%s:%d-%d", name, shard, salt)
	}
	return tag
}

// crc16 is CRC-16/XMODEM: polynomial 0x1021, from 0.
func crc16(text string) uint16 {
	var crc uint16
	for _, each := range []byte(text) {
		crc ^= uint16(each) << 8
		for range 8 {
			carried := crc&0x8000 != 0
			crc <<= 1
			if carried {
				crc ^= 0x1021
			}
		}
	}
	return crc
}
