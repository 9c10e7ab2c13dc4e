"""The hostile run: ``python -m bench.hostile --minutes 10 --seed 1``.

Processes of every kind use one server, while random faults come every few seconds: kills, stops, lost replies, clocks
that are set, a full disk, an archive that is away. An exact oracle compares all answers with the promises.

    journal    what each process was told, line by line; it survives a kill
    actors     the processes: clients, claims, the service's clients, the worker, a meddler
    schedule   when which fault comes, by a seed
    faults     what a fault does, and how it ends
    stage      the server, the proxies and all processes, with their memory
    oracle     compares what was told with the promises
    report     the table and the history
"""
