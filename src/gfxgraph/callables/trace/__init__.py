"""trace: what a function reads and does in Python, as found by Dynamo.

Enters: functions, their arguments, Dynamo's guards and FX graphs.
Stays out: captures, replays, and the code that makes them (held by an import contract).

    dynamo.py     a function traced by Dynamo: as a whole, or as pieces with Python between them
    in_dynamo.py  what Dynamo calls for that: our settings, and what it tells of a frame and its graph
    corrections.py  what stands in the place of Dynamo's own rules meanwhile
    same_code.py  traces that other instances of the same code take
    world.py      what one trace read besides its arguments, and whether any of it may have changed
    guard_walk.py  the walk over Dynamo's guards: what to watch
"""
