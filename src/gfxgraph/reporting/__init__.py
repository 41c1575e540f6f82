"""reporting: what runs in graphs, what each costs, where it came from; as plain data, text, HTML.

Enters: captured graphs, the driver that made them, clocks.
Stays out: capturing and replaying, the command line.

    inspection.py  a capture as plain data: differences of two, DOT, JSON
    reading.py     reads one from a graph; inspect.py: those of graphs, graphed callables, compiled regions
    generated.py   the program's line behind one that torch generated
    folding.py     a list of nodes with repeated layers folded
    demangle.py    C++ names of kernels, for people
    coverage.py    how much of the work graphs did, as numbers
    watch.py       counts it: replays, and eager launches in windows
    launches.py    how many launches an eager operation makes; kernels.py: times of our kernels
    sampler.py     when windows are opened; captured.py: what captures tell of eager launches
    history.py     what a process was like over time
    bench.py       eager, graph and compiled, measured side by side
    opentelemetry.py
                   the counters as OpenTelemetry metrics
    memory.py      where graph memory is, what of it torch does not count; holders.py: who holds tensors
    times.py       device time of nodes by the node walk; traces
    check.py       what in a function a capture would not hold, found in the simulator
    leave.py       what a process leaves for ``gfxgraph run --coverage`` and ``--report``
    left.py        the same read again, without torch
    page.py        all of it as one HTML page (page.html)
    rewrites.py    what to write in place of an operation that no graph records
"""
