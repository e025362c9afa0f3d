"""pymemcache with ASCII authentication. Arguments: address and port of a listener with the user nvlane."""

import sys

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError

SERVER = (sys.argv[1], int(sys.argv[2]))


def refused(text, command):
    try:
        answer = command()
    except MemcacheClientError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{answer!r} instead of {text}")


client = Client(SERVER, timeout=20, default_noreply=False)
refused("unauthenticated", lambda: client.get("key"))
refused("unauthenticated", lambda: client.delete("key"))
refused("bad authentication token format", lambda: client.set("key", b"value"))
refused("authentication failure", lambda: client.set("auth", b"nvlane wrong horse"))
refused("authentication failure", lambda: client.set("auth", b"nobody correct horse"))
assert client.set("auth", b"nvlane correct horse")
assert client.get("auth") is None, "the password is no value"
assert client.set("key", b"value") and client.get("key") == b"value"
assert client.set_many({"a": b"1", "b": b"2"}) == [] and client.get_many(["a", "b"]) == {"a": b"1", "b": b"2"}
stats, settings = client.stats(), client.stats("settings")
assert (stats[b"auth_cmds"], stats[b"auth_errors"]) == (3, 2), stats
assert settings[b"auth_enabled_ascii"] in (True, b"yes"), settings
client.quit()

# Each connection authenticates.
other = Client(SERVER, timeout=20, default_noreply=False)
refused("unauthenticated", lambda: other.get("key"))
other.close()
print("ok")
