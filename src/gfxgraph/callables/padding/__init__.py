"""padding: whether a call may run at a larger size with padded rows, decided from its graph.

judge.py       one callable's calls: verdict, one comparison, refusals
dependence.py  follows a dynamic dim through a graph to a verdict
symbolic.py    the operations of a graph, with symbols for its dynamic dims
rules.py       which operations keep rows apart
"""
