"""One pattern a file, named for the pattern. Adding a file adds a rule; nothing else needs editing.

``bad`` and ``good`` are documentation and test: the first must fire, the second must leave every rule silent.
"""
