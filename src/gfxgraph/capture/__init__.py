"""capture: the drop-in graph: recording, splitting, replaying and checking it; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines, functions that are captured per signature.

    graph.py      BridgedCUDAGraph: what users hold; bridged_class.py: over whichever base
    upward_hooks.py
                  what it asks of the rooms above
    torchs_graph.py
                  messages and arguments of torch's CUDAGraph, by version of torch
    session.py    one capture: segments, and what it must undo
    capture_lock.py
                  captures of several threads
    failures.py, recovery.py
                  a capture that fails to begin or to end, or is invalidated; cleaning up torch after it
    undo.py, graph_block.py, half_entered.py, dispatch_state.py
                  process-wide and thread-wide state that a capture changes, and how it is restored

and subpackages: record/ (the program's operations, numbers, draws, splits), replay/ (the captured program, its
steps, fallback and checks), patches/ (torch's functions that are replaced while a capture runs).
"""
