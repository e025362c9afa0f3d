#!/usr/bin/env python3
"""Golden vectors of DH-HMAC-CHAP and of TLS pre-shared keys, computed with hashlib, hmac and pow.

    python3 tests/vectors.py dhchap > tests/vectors/dhchap.txt
    python3 tests/vectors.py psk > tests/vectors/psk.txt
    python3 tests/vectors.py concatenation > tests/vectors/concatenation.txt
    python3 tests/vectors.py primes          primes of the groups, for src/group/primes.rs

It shares no code with the crate. The primes come from the formula of RFC 7919 with e computed here.
"""

import base64
import hashlib
import hmac
import struct
import sys
import zlib
from fractions import Fraction

HASHES = [(1, "sha256", 32), (2, "sha384", 48), (3, "sha512", 64)]
# Identifier, bits, X of RFC 7919 appendix A, bits of the secret exponent.
GROUPS = [
    (0, 0, 0, 0),
    (1, 2048, 560316, 256),
    (2, 3072, 2625351, 320),
    (3, 4096, 5736041, 384),
    (4, 6144, 15705020, 448),
    (5, 8192, 10965728, 512),
]
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
SUBSYSTEM = "nqn.2016-06.io.nvlane:sub1"
TRANSACTION = 7
S1, S2 = 0x01020304, 0x01020305


def e_digits(bits):
    """floor(2^bits * e)"""
    total, term, n = Fraction(0), Fraction(1), 0
    scale = 1 << (bits + 64)
    whole, value = 0, scale
    while value:
        whole += value
        n += 1
        value //= n
    return whole >> 64


def prime(bits, x):
    return 2**bits - 2 ** (bits - 64) + (e_digits(bits - 130) + x) * 2**64 - 1


def is_probable_prime(n):
    return all(pow(a, n - 1, n) == 1 for a in (2, 3, 5))


def mac(name, key, *parts):
    return hmac.new(key, b"".join(parts), name).digest()


def text(prefix, form, secret):
    return "%s:%02d:%s:" % (
        prefix, form, base64.b64encode(secret + struct.pack("<I", zlib.crc32(secret))).decode())


def count_up(start, length):
    return bytes((start + i) & 0xFF for i in range(length))


def transformed(form, secret, nqn):
    if form == 0:
        return secret
    return mac(HASHES[form - 1][1], secret, nqn.encode() + b"NVMe-over-Fabrics")


def exponent(seed, bits):
    """The first bytes of the 64 random bytes, with the highest bit set, big-endian."""
    value = int.from_bytes(count_up(seed, 64)[: bits // 8], "big")
    return value | 1 << (bits - 1)


def exchange(hash_id, group, both, form, sc_c):
    """All messages of a transaction, both secrets, R1, R2, and the PSK that it generates if SC_C is not 0."""
    _, name, length = HASHES[hash_id - 1]
    _, bits, x, exponent_bits = GROUPS[group]
    p = prime(bits, x) if bits else 0
    size = bits // 8
    secret_length = 32 if form == 0 else HASHES[form - 1][2]
    host_secret = count_up(1, secret_length)
    controller_secret = count_up(0x81, secret_length)
    kh = transformed(form, host_secret, HOST)
    kc = transformed(form, controller_secret, SUBSYSTEM)
    c1, c2 = count_up(0x10, length), count_up(0x60, length)
    a1, a2, dh1, dh2, ks = c1, c2, b"", b"", None
    if bits:
        x1, x2 = exponent(0xA0, exponent_bits), exponent(0x33, exponent_bits)
        dh1 = pow(2, x1, p).to_bytes(size, "big")
        dh2 = pow(2, x2, p).to_bytes(size, "big")
        z = pow(int.from_bytes(dh1, "big"), x2, p)
        assert z == pow(int.from_bytes(dh2, "big"), x1, p)
        ks = hashlib.new(name, z.to_bytes(size, "big")).digest()
        a1, a2 = mac(name, ks, c1), mac(name, ks, c2)
    t, sc = struct.pack("<H", TRANSACTION), bytes([sc_c])
    # Without the controller's secret S2 is 0; C2 is sent all the same to generate a key.
    s2, has_c2 = S2 if both else 0, both or sc_c != 0
    r1 = mac(name, kh, a1, struct.pack("<I", S1), t, sc, b"HostHost",
             HOST.encode(), b"\0", SUBSYSTEM.encode())
    r2 = mac(name, kc, a2, struct.pack("<I", s2), t, sc, b"Controller",
             SUBSYSTEM.encode(), b"\0", HOST.encode())
    negotiate = b"\0\0\0\0" + t + sc + bytes([1, 1, 0, 1, 1, hash_id]) + bytes(29) + bytes([group]) + bytes(29)
    challenge = b"\1\1\0\0" + t + struct.pack("<BBBBHI", length, 0, hash_id, group, size, S1) + c1 + dh1
    reply = (b"\1\2\0\0" + t + struct.pack("<BBBBHI", length, 0, has_c2, 0, size, s2)
             + r1 + (c2 if has_c2 else bytes(length)) + dh2)
    success1 = b"\1\3\0\0" + t + bytes([length, 0, both]) + bytes(7) + (r2 if both else b"")
    messages = [negotiate, challenge, reply, success1]
    if both:
        messages.append(b"\1\4\0\0" + t + bytes(10))
    assert len(negotiate) == 72
    generated = mac(name, ks, c1, c2) if sc_c else None
    return b"".join(messages), host_secret, controller_secret, r1, r2, generated


def dhchap():
    print("# hash group directions form host-secret controller-secret R1 R2 SHA-256-of-all-messages")
    for hash_id, _, _ in HASHES:
        for group, _, _, _ in GROUPS:
            for directions in (1, 2):
                for form in range(4):
                    both = directions == 2
                    messages, host, controller, r1, r2, _ = exchange(hash_id, group, both, form, 0)
                    print(hash_id, group, directions, form, text("DHHC-1", form, host),
                          text("DHHC-1", form, controller), r1.hex(), r2.hex() if both else "-",
                          hashlib.sha256(messages).hexdigest())


def concatenation():
    print("# SC_C|hash|group|directions|R1|R2|SHA-256 of all messages|generated PSK|identity 1|TLS PSK 1")
    for sc_c in (2, 3):
        for hash_id, _, _ in HASHES[:2]:
            for group, _, _, _ in GROUPS[1:]:
                for directions in (1, 2):
                    both = directions == 2
                    messages, _, _, r1, r2, generated = exchange(hash_id, group, both, 0, sc_c)
                    _, _, identity, key = tls(hash_id, "G", generated, HOST, SUBSYSTEM)
                    print(sc_c, hash_id, group, directions, r1.hex(), r2.hex() if both else "-",
                          hashlib.sha256(messages).hexdigest(), generated.hex(), identity, key.hex(), sep="|")


def expand_label(name, key, label, context, length):
    """HKDF-Extract with a zero salt, then HKDF-Expand-Label of RFC 8446."""
    extracted = mac(name, bytes(hashlib.new(name).digest_size), key)
    label = b"tls13 " + label
    info = struct.pack(">H", length) + bytes([len(label)]) + label + bytes([len(context)]) + context
    assert length <= len(extracted)
    return mac(name, extracted, info, b"\1")[:length]


def tls(cipher, kind, psk, host, subsystem):
    name, length = {1: ("sha256", 32), 2: ("sha384", 48)}[cipher]
    digest = base64.b64encode(mac(name, psk, ("%s %s NVMe-over-Fabrics" % (host, subsystem)).encode())).decode()
    id0 = "NVMe0%s%02d %s %s" % (kind, cipher, host, subsystem)
    id1 = "NVMe1%s%02d %s %s %s" % (kind, cipher, host, subsystem, digest)
    key0 = expand_label(name, psk, b"nvme-tls-psk", id0.encode(), length)
    key1 = expand_label(name, psk, b"nvme-tls-psk", ("%02d %s" % (cipher, digest)).encode(), length)
    return id0, key0, id1, key1


def psk():
    host, subsystem = "nqn.psk-test-host", "nqn.psk-test-subsys"
    known = bytes.fromhex("5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03")
    print("# retained|interchange|retained PSK|identity 0|TLS PSK 0|identity 1|TLS PSK 1")
    for form, configured in [(0, known), (0, count_up(3, 48)), (1, known), (2, count_up(3, 48))]:
        cipher = form or {32: 1, 48: 2}[len(configured)]
        retained = configured
        if form:
            retained = expand_label(HASHES[form - 1][1], configured, b"HostNQN", host.encode(), len(configured))
        id0, key0, id1, key1 = tls(cipher, "R", retained, host, subsystem)
        print("retained", text("NVMeTLSkey-1", form, configured), retained.hex(), id0, key0.hex(), id1, key1.hex(), sep="|")
    print("# generated|hash|session key|C1|C2|generated PSK|identity 0|TLS PSK 0|identity 1|TLS PSK 1")
    for hash_id, name, length in HASHES[:2]:
        ks, c1 = count_up(0x41, length), count_up(0, length)
        c2 = bytes(0xFF - i for i in range(length))
        generated = mac(name, ks, c1, c2)
        id0, key0, id1, key1 = tls(hash_id, "G", generated, "hostnqn", "subsysnqn")
        print("generated", hash_id, ks.hex(), c1.hex(), c2.hex(), generated.hex(), id0, key0.hex(), id1, key1.hex(), sep="|")


def primes():
    for _, bits, x, _ in GROUPS[1:]:
        p = prime(bits, x)
        assert is_probable_prime(p) and is_probable_prime(p // 2)
        digits = "%X" % p
        print("%d %s" % (bits, digits))


{"dhchap": dhchap, "psk": psk, "concatenation": concatenation, "primes": primes}[sys.argv[1]]()
