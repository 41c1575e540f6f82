"""callables: graphed functions and modules; what a user calls, captured per signature and replayed.

Enters: functions, modules, their arguments.
Stays out: engines, the command line.

The room is not called ``graphed``: importing a package of that name would put it over the function of that
name in ``gfxgraph`` (docs/decisions/0106).

    api.py        graphed(): what users call; options.py: what they asked for
    graphed.py    Graphed: what users hold, and the way of one call
    capturing.py  its captures: warm-up, room, attempts
    signature.py  arguments and results as trees; what makes two calls the same; one call, understood
    buckets.py    dynamic dims, declared or inferred; which bucket a call goes to
    entry.py      one captured signature: its graphs, its buffers, one replay
    inputs.py     static inputs, and how a call's tensors get into them
    outputs.py    whose memory a result is; buffers handed out and still in use
    relocation.py large arguments read where they lie
    capture_all.py  every bucket before the first call
    engine.py     capture of one function on one set of static inputs
    arena.py      pool, capture stream, cap, eviction, report
    explanation.py  what a callable says of itself
    plans.py      the sizes seen, the buckets they give
    chunks.py     calls above the largest bucket, in pieces
    adaptive.py   timings, and the decisions kept between runs
    worlds.py     the worlds that its calls are in: known, new, in pieces
    reads.py      what a function reads besides its arguments: as traced, or as promised
    effects.py    what one eager run wrote and drew
    captured_function.py
                  one function over inputs that stay in place: a graph, with eager behind it; the replay that
                  undoes what it did where it fails
    facts.py      what a captured graph reads, writes and draws
    older.py      the names of gfxgraph 1.x

and rooms of their own: trace/ (Dynamo: what was read, and the pieces), fast_path/,
padding/, control/, training/, distributed/.
"""
