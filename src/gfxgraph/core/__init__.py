"""core: descriptions of captured work.

Enters: shapes, dtype names, tape entries, plain numbers.
Stays out: torch, drivers, files, clocks, environment.
"""
