"""pieces: graphs from another compiler, captured and replayed wherever its code calls them.

graph_numbers.py  an FX graph's numbers, computed in Python, apart from its operations
device_numbers.py
           operations with a changing number, in the form that takes it as a tensor
region.py  one callable compiled by Inductor, or one FX graph from Dynamo: static inputs are bound to their addresses

Of Dynamo's graphs they are made when a call first runs in pieces (``worlds.TracedGraph``).
"""
