"""capture: the drop-in graph: recording, splitting, replaying and checking it; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines, functions that are captured per signature.

    graph.py      BridgedCUDAGraph: what users hold, over whichever base
    upward_hooks.py
                  what it asks of the rooms above
    torchs_graph.py
                  torch's CUDAGraph by version: messages, arguments, its ``with`` block, its launch
    state.py, session.py
                  the states of a graph object and of its capture; one capture: segments, and how it begins and ends
    undo.py       how what a capture changes is undone: one stack, one baseline, one repair
    capture_lock.py
                  captures of several threads
    failures.py   a capture that fails to begin or to end, or is invalidated; cleaning up torch after it

and subpackages: record/ (the program's operations, numbers, draws, splits), replay/ (the captured program, its
steps, fallback and checks), patches/ (torch's functions that are replaced while a capture runs).
"""
