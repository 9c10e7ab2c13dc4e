"""The tags of shards and the slots of a Redis Cluster, written for the reader: a bit at a time, and in fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from math import floor


def slot_of(tag: str) -> int:
    """The slot of keys with this text between braces: CRC16 (XMODEM) modulo 16384."""
    crc = 0
    for byte in tag.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
    return crc % 16384


def group_of(slot: int, groups: int) -> int:
    """The group whose equal share of all slots has this one."""
    return floor(Fraction(slot * groups, 16384))


def spread_tag(name: str, shard: int, shards: int) -> str:
    """The first text, plain or with the lowest salt, whose slot is in the shard's group."""
    wanted = (group_of(slot_of(f"{name}:0"), shards) + shard) % shards
    tags = (f"{name}:{shard}" + (f"-{salt}" if salt else "") for salt in count())
    return next(tag for tag in tags if group_of(slot_of(tag), shards) == wanted)


def first_slots(masters: int) -> list[int]:
    """The first slot of each master, as ``redis-cli --cluster create`` deals them."""
    return [floor(16384 / masters * number + 0.5) for number in range(masters)]
