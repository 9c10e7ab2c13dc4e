"""``python -m bench.where``: the table of where the time of a batch goes."""

from __future__ import annotations

import redis

from bench.where import MIXES, ROWS, table


def test_table(any_server):
    """It has each row, for each size of lists and each mix; what was measured is more than nothing."""
    with redis.Redis(unix_socket_path=str(any_server.socket)) as client:
        head, _, *rows = table(client, 600, [200, 600], rounds=1).splitlines()
    assert head == "| µs an item | 200, new | 200, seen | 600, new | 600, seen |"
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [name for name, *_ in cells] == [*ROWS.values()]
    figures = {name: [float(each) for each in more] for name, *more in cells}
    assert all(len(each) == 2 * len(MIXES) for each in figures.values())
    assert min(figures["**wall**"] + figures["Lua"]) > 0
