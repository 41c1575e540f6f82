"""cases: the facts that ``gfxgraph doctor --selftest`` proves on the GPU that is there, one function each.

Each runs in a process of its own and compares with eager execution. The first line of a docstring is the
fact, as the report and the terminal show it. A new case is a function in the file of its theme.

    captures.py     captures and their replays: state, pools, streams, sizes, random numbers
    failing_captures.py  captures that fail, replays that are checked
    networks.py     decoding, training, the libraries
    long_runs.py    many replays, many graphs; default settings; speed
"""

from __future__ import annotations

from gfxgraph.selftest.cases import captures, failing_captures, long_runs, networks

MODULES = (captures, failing_captures, networks, long_runs)
"""From simple to hard, as the cases stand in each, so that the first failure is the one to look at."""
