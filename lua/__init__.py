"""The Lua scripts, as data: one command a file, ``_*.lua`` are includes (see ``urifilter_redis.protocol.scripts``)."""
