"""Stores and retrieves values: python key_value.py HOST:PORT/NQN?ns=1"""

import sys

import nvlane

with nvlane.KeyValue(sys.argv[1], lanes=2) as cache:
    cache.set("greeting", b"hello")
    print(cache.get("greeting"))
    # Commands of one call are outstanding together.
    cache.set_many(["a", "b", "c"], [b"1", b"2", b"3"])
    print(cache.get_many(["a", "b", "missing"]))
    print(cache.exists_many(["c", "missing"]))
    # Executed by the target, exactly once or with an error that says that it may have been.
    print(cache.incr("visits", initial=0))
    cache.delete_many(["a", "b", "c"])
