"""guard: no illegal access goes unexplained, and a wrong kernel gets a name.

Enters: captured programs, tensors, errors that the device raised.
Stays out: capturing itself; a graph without a guard knows nothing of this folder.

    level.py        which tier is in force
    layout.py       tier 1: tensors that are plain memory of their own
    pointers.py     tier 1: pointers into memory that has been given back
    nodes.py        what each node of a graph is; layouts_of_kernels.py reads arguments that HIP does not tell
    live_memory.py  what the allocator knows; names.py what the program calls its tensors
    flight.py       tier 2: the file that outlives the process
    localize.py     tier 2: replay by node walk, and a fault's text
    zoned_pool.py   tier 3: a pool that gives each allocation a segment of its own; redzone_allocator.cpp
    redzones.py     tier 3: bytes around every allocation that must not be written
    bisect.py       which operation fails or differs, and a script that shows it
    guard.py        all of it for one graph; for_capture.py: what graphs ask of this room
"""
