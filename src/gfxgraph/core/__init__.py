"""core: descriptions of captured work.

Enters: shapes, dtype names, tape entries, plain numbers.
Stays out: torch, drivers, clocks, environment; files, but for a table of its own.

    tape.py              what a capture's operations were, in SSA form: ids, not tensors
    expressions.py       what a program computed from values that it read from the device, and their guards
    unsafe.py            the table of operations that no GPU graph can record (unsafe.toml)
    constants.py         when two values that are not tensors are the same constant
    strides.py           what is unusual about a tensor's memory
    bucket_sizes.py      the sizes that are captured, and which of them serves a call
    eviction.py          what a further capture will need, and what must go for it
    eager_or_graph.py    eager or graph, by timings
    counters.py          captures, replays, splits and every fallback with its reason
    replaced.py          attributes that were replaced, and how they are put back
    locks.py             locks that a forked child does not inherit held
    flight_page.py       the flight recorder's page: 128 bytes
    fault_report.py      a fault's report, put together
    memory_map.py        where an address lies among known allocations
"""
