"""trace: what a function reads and does in Python, as Dynamo found it.

Enters: functions, their arguments, Dynamo's guards and FX graphs.
Stays out: captures, replays.

    frontend.py   a function traced by Dynamo: as a whole, or as pieces with Python between them
    corrections.py  rules of Dynamo's that would give another answer than Python
    world.py      what one trace read besides its arguments, and whether any of it may have changed
    dicts.py      noticing that a dict has changed
    pieces.py     one FX graph that Dynamo gave, captured and replayed
"""
