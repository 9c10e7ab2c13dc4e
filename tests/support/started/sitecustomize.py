"""Imported by each Python that the tests start: ``patience`` for the product, if that is imported."""

import sys
from importlib.machinery import PathFinder

import patience


class Finder(PathFinder):
    """Finds the module of the timeouts, and changes them when it has been loaded."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name == "urifilter_redis.engine.steps" else None
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module) -> None:
                load(module)
                patience.lengthen(module.Timeouts)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
