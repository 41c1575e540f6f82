"""callables: graphed functions and modules; what a user calls, captured per signature and replayed.

Enters: functions, modules, their arguments.
Stays out: engines, the command line.

    public.py     graphed(): what users call; options.py: what they asked for
    graphed.py    Graphed: what users hold, and the way of one call
    capturing.py  its captures: warm-up, room, attempts
    fast.py       the fast path, written out for one signature; writer.py: its source
    joining.py    a call as one launch, its copies nodes of the graph exec; copying.py: copies launched on their own
    call.py       one call's arguments, understood
    signature.py  arguments and results as trees; what makes two calls the same
    dims.py       dynamic dims, declared or inferred; which bucket a call goes to
    entry.py      one captured signature: its graphs, its buffers, one replay
    inputs.py     static inputs, and how a call's tensors get into them
    outputs.py    whose memory a result is; buffers handed out and still in use
    relocate.py   large arguments read where they lie
    ahead.py      every bucket before the first call
    engine.py     capture of one function on one set of static inputs
    memory.py     the arena: pool, capture stream, cap, eviction, report
    planned.py    sizes and choices of one callable: proofs, chunks, eager or graph
    plans.py      the sizes seen, the buckets they give, what is proved
    padding.py    the proof; attempt.py: its runs; compare.py: in what they must agree; proof.py: what comes out
    witness.py    one run, watched; with invent.py, nearness.py, outside.py, pystate.py
    chunks.py     calls above the largest bucket, in pieces
    adaptive.py   timings, and the decisions kept between runs
    watch.py      what a function reads besides its arguments: parameters, flags

and what is built beside and from them:

    piece.py        one function over inputs that stay in place: a graph, with eager behind it
    facts.py        what a captured graph reads, writes and draws
    rehearse.py     running a function ahead of its capture and undoing what it did
    flags.py        device values read by the host without waiting for more than them
    conditional.py  one of several branches, by name, index or device flag
    loops.py        bounded while loops on a device predicate; several steps in one launch
    compose.py      captured graphs joined into one launch
    training.py     whole training steps; make_graphed_callables warmed up where it captures
    ranks.py        what several processes decide together
    agreed.py       a function that is captured on every rank or on none; on_ranks.py: where there are several
    older.py        the names of gfxgraph 1.x
"""
