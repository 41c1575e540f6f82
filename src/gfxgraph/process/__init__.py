"""process: the state of one process and its statistics; below recording and replay.

Enters: settings, a platform, a driver.
Stays out: graphs being captured; torch at import time.

    process.py    Process: settings, driver, counters, the captures underway in each thread
    bridge.py     whether the bridge is on; the state that graphed callables have without it
    calls.py      the one account of calls: by graph, in pieces, eager, raised
    health.py     stats(), health_check()
    progress.py   progress of long commands, on stderr
    imports.py    callbacks after a module's import
"""
