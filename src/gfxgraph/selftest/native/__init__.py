"""native: the self-test below torch: what HIP does with captures, streams and graphs on the GPU that is there.

Enters: a HIP runtime, the preload library where there is one.
Stays out: torch; the terminal.

    native_suite.py     NativeSuite: all of it, within a time, as one report; which cells differ and what that means
    native_worker.py    jobs in forked processes, each with a limit
    hip_calls.py        the few HIP calls that they share
    capture_table.py    what each call does in a capture, by mode and thread
    scenarios.py        what the driver room does
    experiments.py      things done inside a capture, under the preload library
    stream_programs.py  captures over several streams, made at random
    tables/             capture tables measured on AMD's runtimes; the simulator's profiles are made from them
"""
