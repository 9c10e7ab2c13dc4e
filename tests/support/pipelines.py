"""Flows that are driven a pipeline at a time, so that a test can stop them, or do something between."""

from __future__ import annotations

from urifilter_redis.engine.steps import Send, Work


def pipelines(flow, connector):
    """Run a flow; yield after each pipeline; return what the flow returns."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Send):
                step = flow.send(connector.send(step.commands))
                yield
            else:
                step = flow.send(step.do() if isinstance(step, Work) else None)
    except StopIteration as stop:
        return stop.value
    finally:
        flow.close()
