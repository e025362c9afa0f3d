"""pymemcache over TLS. Arguments: address and port of a listener that requires certificates of clients."""

import ssl
import sys

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheError

SERVER = (sys.argv[1], int(sys.argv[2]))


def context(authority="authority.pem", client="client", version=None):
    made = ssl.create_default_context(cafile=authority)
    if client:
        made.load_cert_chain(f"{client}.pem", f"{client}.key")
    if version:
        made.minimum_version = made.maximum_version = version
    return made


def client_of(made, kind=Client, **more):
    return kind(SERVER, tls_context=made, timeout=20, connect_timeout=20, **more)


def refused(what, made):
    try:
        answer = client_of(made).get("key")
    except (MemcacheError, OSError):
        return
    raise AssertionError(f"{what}: {answer!r}")


for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
    client = client_of(context(version=version))
    name = version.name
    assert client.set(name, b"value") and client.get(name) == b"value"
    pairs = {f"{name}-{number}": str(number).encode() for number in range(500)}
    assert client.set_many(pairs) == [] and client.get_many(list(pairs)) == pairs
    for length in (1000, 17_000, 100_000, 1_000_000):
        value = bytes(number % 251 for number in range(length))
        assert client.set("long", value) and client.get("long") == value
    settings = client.stats("settings")
    assert settings[b"ssl_enabled"] in (True, b"yes"), settings
    client.quit()

pool = client_of(context(), PooledClient, max_pool_size=4)
assert pool.set("pooled", b"1") and pool.incr("pooled", 2) == 3 and pool.delete("pooled")
pool.close()

refused("no certificate", context(client=None))
refused("certificate of another authority", context(client="stranger"))
refused("unknown authority", context(authority="stranger.pem"))
refused("in cleartext", None)
print("ok")
