"""capture: the drop-in graph: recording, splitting, replaying and checking it; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines, functions that are captured per signature.

    graph.py      BridgedCUDAGraph: what users hold; bridged_class.py: over whichever base
    above.py      what it asks of the rooms above
    countdown.py  the lines of a replay that has nothing to check
    torchs_graph.py
                  messages and arguments of torch's CUDAGraph, by version of torch
    session.py, splits.py
                  one capture: segments, undo; what runs between two segments
    turns.py      captures of several threads
    watch.py      reports captures and replays that hang
    shield.py     guards against calls that invalidate a capture without being operations
    failures.py, recovery.py
                  a capture that fails to begin or to end, or is invalidated; cleaning up torch after it
    holdings.py, blocks.py
                  process-wide state that a capture changes, and how it is restored
    half_entered.py  ends ``with`` blocks that an interrupt left half entered
    dispatch_state.py  what torch's dispatcher, autocast and Dynamo keep of a thread, restored
    rollback.py   saves and restores what the captured work changes outside its graph
    generators.py, streams.py, host_values.py
                  the parts of a session
    random_state.py, draws.py
                  ``get_rng_state`` and other threads' draws while a capture runs
    seeds.py      generators that the captured program seeds
    scaler.py     ``GradScaler.step``, the one branch that is captured both ways
    optimizers.py what torch refuses of optimizers inside a capture, and what they do in their first step alone
    peers.py      the other ranks of a job, asked through torch.distributed's store
    recorder.py, not_recorded.py
                  the dispatch mode that writes the tape; calls that it does not write down as they come
    overloads.py, bindings.py, fused_recording.py
                  facts about each operation, torch's bindings for it, and operations recorded whole
    places.py     which line of the program is running
    modes.py      entering and leaving torch's stack of dispatch modes; autocasting.py: autocast's state inside a mode
    intercept.py, stock.py
                  patches for host reads and waits that no dispatch mode sees
    tensor_reads.py, waits.py, collectives.py
                  the functions that replace them
    numbers.py    what ``.item()`` hands out inside a capture
    number_functions.py, symbols.py
                  such numbers passed to C functions, and as torch's symbolic scalars
    afterwards.py such numbers when their capture is over
    host_memory.py
                  host memory that captured code read
    moving.py, homes.py
                  tensors whose shape depends on data, and other captures that use them
    program.py    a captured program; steps.py: what a replay of it does, step by step
    walk.py       a program's nodes, launched one by one
    execute.py    running a tape eagerly
    validate.py   replay against eager
    tolerance.py  tolerances for comparing two runs
    memory.py     tensors over memory that a graph uses
    structure.py, conditions.py: conditions on an operation's arguments
    hooks.py      torch's replay hooks; remedies.py, workspaces.py: workarounds for torch and its libraries during
    captures
"""
