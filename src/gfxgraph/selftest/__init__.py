"""selftest: the safety suite on whatever GPU is there, each case in a process of its own, and one report.

Enters: a simulator profile or nothing, names of cases.
Stays out: the terminal; torch, outside the processes of the cases.

    suite.py      Suite: the device, the cases, the report
    worker.py     one case in a process that was started for it
    processes.py  where these processes come from, and how they are made to end
    schedule.py   which cases run side by side, and what a failure among them means
    matrix.py     reports of many machines as one table
    outcome.py    how a case ended, in words
    scrub.py      what a report must not hold
    bench.py      what cases are written with
    cases/        the cases: cases/__init__.py lists them in order and says in which file each is
"""
