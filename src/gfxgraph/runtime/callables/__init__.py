"""callables: functions replayed as graphs, and what is built from several of them.

    piece.py        one function captured over inputs that stay in place
    rehearse.py     running a function ahead of its capture and undoing what it did
    flags.py        device values read by the host without waiting for more than them
    conditional.py  one of several branches, by name, index or device flag
    loops.py        bounded while loops on a device predicate; several steps in one launch
    compose.py      captured graphs joined into one launch
    training.py     whole training steps; make_graphed_callables warmed up where it captures
    ranks.py        what several processes decide together
    older.py        the names of gfxgraph 1.x
"""
