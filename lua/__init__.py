"""The Lua scripts: one file a command; ``_*.lua`` are included by others (see ``urifilter_redis.protocol.scripts``).

``vectors.json`` has known answers, for the tests and for other languages.
"""
