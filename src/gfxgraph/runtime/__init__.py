"""runtime: recorder, capture, replay, pools; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines.

    graph.py      BridgedCUDAGraph: what users hold
    session.py    one capture: segments, splits, undo
    failures.py, recovery.py
                  a capture that cannot begin, cannot end or dies; cleaning torch up after it
    undo.py, generators.py, streams.py, host_values.py
                  what a session keeps: each in a file of its own
    recorder.py   the dispatch mode that writes the tape
    overloads.py, bindings.py, whole.py
                  what is known of an operation, how it is called, and which ones are not taken apart
    modes.py      standing on torch's stack of dispatch modes, and leaving it
    intercept.py  host reads and waits that no dispatch mode sees
    numbers.py    what ``.item()`` hands out inside a capture
    steps.py      what a replay does, step by step
    execute.py    running a tape eagerly
    validate.py   replay against eager
    guard/        against illegal memory accesses: tiers, flight recorder, red zones, bisect
    process.py    the process's settings, driver, counters and sessions
    callables/    gfxgraph.graphed: functions captured per signature
    selftest.py   the safety suite, case by case in processes of its own; selftest_cases.py holds the cases,
                  selftest_process.py their processes, selftest_schedule.py what runs beside what
"""
