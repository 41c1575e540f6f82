"""guard: explains illegal memory accesses, and names the kernel at fault.

Enters: captured programs, tensors, errors that the device raised.
Stays out: capturing itself; graphs without a guard do not depend on this folder.

    level.py        which tier is in force
    layout.py       tier 1: tensors that own plain contiguous memory
    pointers.py     tier 1: pointers into freed memory
    nodes.py        what each node of a graph is; layouts_of_kernels.py the argument layouts of Triton's that HIP
                    does not report
    live_memory.py  the allocator's state; tensor_names.py the program's names for its tensors
    flight_recorder.py  tier 2: the file that outlives the process
    localize.py     tier 2: replay by node walk, and a fault's text
    redzone_pool.py   tier 3: a pool that gives each allocation a segment of its own; redzone_allocator.cpp
    redzones.py     tier 3: bytes around every allocation that must not be written
    guard.py        all of it for one graph, and the hooks that graphs call
"""
