"""process: the state of one process and its statistics; below recording and replay.

Enters: settings, a platform, a driver.
Stays out: graphs being captured; torch at import time.

    process.py    Process: settings, driver, counters, the captures underway in each thread
    bridge.py     whether the bridge is on; the state that graphed callables have without it
    health.py     stats(), health_check()
    metrics.py    the same for Prometheus
    kept.py       what was measured, kept for later processes
    progress.py   how far something is, on stderr
    imports.py    being called when a module has been imported
    said.py       what other libraries' logs say of graphs that they leave off
"""
