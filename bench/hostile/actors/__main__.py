"""Run one actor: ``python -m bench.hostile.actors ROLE SETTINGS``, with the settings of a ``Part`` as JSON."""

from __future__ import annotations

import importlib
import json
import logging
import sys

from bench.hostile.actors.part import Part


def main() -> None:
    """Run it until it is to stop."""
    role, settings = sys.argv[1:]
    logging.disable(logging.CRITICAL)  # what fails is in the journal
    module = importlib.import_module(f"bench.hostile.actors.{role}")
    with Part(**json.loads(settings)) as part:
        module.run(part)


if __name__ == "__main__":
    main()
