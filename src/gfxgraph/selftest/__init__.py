"""selftest: the safety suite on whatever GPU is there, each case in a process of its own, and one report.

Enters: a simulator profile or nothing, names of cases.
Stays out: the terminal; torch, outside the processes of the cases.

    suite.py   Suite: the device, the cases one after the other, how each process ended, the report that may be sent
    worker.py  one case in the process that was started for it
    bench.py   what cases are written with
    native/    what needs no torch: the capture table, driver scenarios, the preload library, programs of streams
    cases/     the cases: cases/__init__.py lists them in order and says in which file each is
"""
