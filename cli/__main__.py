"""``python -m urifilter_redis.cli``."""

from .main import main

main()
