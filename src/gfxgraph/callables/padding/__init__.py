"""padding: whether a call may run at a larger size with padded rows, judged from its graph.

judge.py         what is known of one function's padding: verdicts, refusals, requests
program.py       a traced graph and its arguments
symbolic.py      the operations of a graph, with symbols for its dynamic dims
dependence.py    follows a dynamic dim through them to a verdict
rows.py          how a tensor of a padded run compares with that of the call's own
row_rules.py     rules for operations that compute
layout_rules.py  rules for views, slices, joins
index_rules.py   rules for indices
by_row.py        which operations treat rows singly
content.py       what padding holds
in_bucket.py     one call compared with its bucket's graph
compare.py       one call compared with the same call run another way
"""
