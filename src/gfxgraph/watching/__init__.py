"""watching: whether what was read has changed since, and who holds it.

Enters: any object of a program, tensors, dicts.
Stays out: captures, replays, Dynamo.

    watch.py      the cheapest sound watch for each object, all asked by one function
    memory_words.py  words of memory that change with an object
    holders.py    the places in a program's objects that hold a tensor
"""
