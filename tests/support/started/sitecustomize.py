"""Imported by each Python that the tests start: it changes the modules of the product that tests want otherwise."""

import os
import sys
from importlib.machinery import PathFinder

import patience
import seeds
import segments
import slices


def _lengthen(steps) -> None:
    patience.lengthen(steps.Timeouts)


def _draw(digest) -> None:
    if seeds.VARIABLE in os.environ:
        digest.secrets = seeds.drawn(os.environ[seeds.VARIABLE])


CHANGES = {
    "urifilter_redis.engine.steps": _lengthen,
    "urifilter_redis.bloom.digest": _draw,
    "urifilter_redis.bloom.retention": slices.limit,
    "urifilter_redis.bloom.sizing": segments.multiply,
}


class Finder(PathFinder):
    """Finds the modules that the tests want otherwise, and changes each when it has been loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name in CHANGES else None
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module) -> None:
                load(module)
                CHANGES[name](module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
