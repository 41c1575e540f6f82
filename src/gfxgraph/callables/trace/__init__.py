"""trace: what a function reads and does in Python, as Dynamo found it.

Enters: functions, their arguments, Dynamo's guards and FX graphs.
Stays out: captures, replays, and whoever makes them (held by an import contract).

    frontend.py   a function traced by Dynamo: as a whole, or as pieces with Python between them
    dynamo.py     how Dynamo is asked: settings, backend, the frame that it begins at
    found.py      what Dynamo gave for one frame, and why that is not the whole call
    corrections.py  rules of Dynamo's that would give another answer than Python
    world.py      what one trace read besides its arguments, and whether any of it may have changed
    watch.py      the walk over Dynamo's guards: what is to be watched, and how
    words.py, dicts.py  noticing that objects, and dicts, have changed
"""
