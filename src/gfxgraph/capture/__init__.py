"""capture: the drop-in graph: recording, splitting, replaying and checking it; torch enters here.

Enters: tensors, streams, graphs.
Stays out: command line, engines, functions that are captured per signature.

    graph.py      BridgedCUDAGraph: what users hold; bridged_class.py: over whichever base
    above.py      what it asks of the rooms above
    countdown.py  the lines of a replay that has nothing to check
    torchs_graph.py
                  what torch's CUDAGraph says and takes, by torch's version
    session.py    one capture: segments, splits, undo; turns.py: captures of several threads
    watch.py      reports captures and replays that do not come to an end
    shield.py     what kills captures without being an operation
    failures.py, recovery.py
                  a capture that cannot begin, cannot end or dies; cleaning torch up after it
    holdings.py, blocks.py
    half_entered.py                blocks that an interrupt has left half entered, ended at once
                  what a capture holds of the process and gives back; blocks that an interrupt left
    rollback.py   what work changes outside its graph, saved and put back
    generators.py, streams.py, host_values.py
                  what a session keeps: each in a file of its own
    random_state.py, draws.py
                  ``get_rng_state`` and other threads' draws while a capture runs
    scaler.py     ``GradScaler.step``, the one branch of which both ways are known
    peers.py      the other ranks of a job, asked through torch.distributed's store
    recorder.py   the dispatch mode that writes the tape
    overloads.py, bindings.py, fused_recording.py
                  what is known of an operation, how it is called, and which ones are not taken apart
    places.py     which line of the program is running
    modes.py      standing on torch's stack of dispatch modes, and leaving it; autocasting.py: asked from there
    source.py, texts.py, uses.py
                  what the source says of a value: a text that decides, a number that must be plain
    intercept.py, stock.py
                  host reads and waits that no dispatch mode sees
    tensor_reads.py, waits.py
                  what stands in their place
    numbers.py    what ``.item()`` hands out inside a capture
    number_functions.py, symbols.py
                  such numbers in functions written in C, and as torch's symbolic scalars
    moving.py, homes.py
                  tensors whose shape depends on data, and other captures that use them
    program.py    a captured program; steps.py: what a replay of it does, step by step
    walk.py       a program's nodes, launched one by one
    execute.py    running a tape eagerly
    validate.py   replay against eager
    tolerance.py  how near two runs must be
    memory.py     tensors over memory that a graph uses
    structure.py, conditions.py: what is read of calls
    hooks.py      torch's replay hooks; remedies.py, workspaces.py: what torch and its libraries need around captures
"""
