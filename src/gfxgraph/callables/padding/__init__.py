"""padding: whether a call may run at a larger size with padded rows, decided from its graph.

verdicts.py       verdicts on one function's padding, refusals, the user's requests
traced_program.py a traced graph and its arguments
symbolic.py      the operations of a graph, with symbols for its dynamic dims
dependence.py    follows a dynamic dim through them to a verdict
rules.py         which operations keep rows apart
content.py       the content of padding
in_bucket.py     compares one call with its bucket's graph
compare.py       compares one call with the same call run in another way
"""
