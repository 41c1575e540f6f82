"""fast_path: the common call of a graphed callable, in as little Python and as few launches as it can be.

fast.py       the fast path, written out for one signature; writer.py: its source
joining.py    a call as one launch, its copies nodes of the graph exec; copying.py: copies launched on their own
"""
