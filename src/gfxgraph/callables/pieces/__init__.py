"""pieces: graphs that somebody else compiled, captured and replayed where that one's code calls them.

piece.py   one FX graph that Dynamo gave, in a call that is more than one graph
region.py  one callable that Inductor compiled, or a piece: what stays in place is bound to its address
sizes.py   which dim of which tensor a number among the inputs is
"""
