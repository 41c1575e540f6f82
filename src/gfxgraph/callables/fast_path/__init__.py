"""fast_path: the common call of a graphed callable, with as little Python and as few launches as possible.

fast.py       the fast path, generated for one signature; writer.py: its source
joining.py    a call as one launch, with its copies as nodes of the graph exec; copying.py: copies launched separately
"""
