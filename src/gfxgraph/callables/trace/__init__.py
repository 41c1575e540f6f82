"""trace: what a function reads and does in Python, as found by Dynamo.

Enters: functions, their arguments, Dynamo's guards and FX graphs.
Stays out: captures, replays, and the code that makes them (held by an import contract).

    frontend.py   a function traced by Dynamo: as a whole, or as pieces with Python between them
    dynamo.py     how Dynamo is called: settings, backend, the first frame
    found.py      what Dynamo returned for one frame, and why that is not the whole call
    corrections.py  corrects rules of Dynamo whose result differs from Python's
    world.py      what one trace read besides its arguments, and whether any of it may have changed
    watch.py      the walk over Dynamo's guards: what to watch, and how
    words.py, dicts.py  detecting changes of objects and of dicts
"""
