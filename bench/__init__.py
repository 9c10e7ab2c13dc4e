"""The bench: ``python -m bench`` measures this library beside what people use today, in one run.

    kbest      repeats until the fastest tries agree; contestants in turns
    streams    the URIs of a try: new ones, seen ones, the links of a crawl
    usage      time, bytes and memory of the server, processor time of the client
    measuring  one peer, one batch after the other
    peers      what is measured, one file each
    machine    where it was measured, with which versions
    report     RESULTS.json and RESULTS.md
    where      where the time of a batch goes: ``python -m bench.where``
    hostile    everything at once, and broken: ``python -m bench.hostile``

The other files are scripts that measure one part each: ``python bench/single.py``. They share ``servers``,
``processes`` and ``urls`` with the package.
"""
