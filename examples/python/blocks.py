"""Reads and writes a block namespace: python blocks.py HOST:PORT/NQN?ns=1"""

import sys

import nvlane

with nvlane.Blocks(sys.argv[1]) as disk:
    print(f"{disk.address}: {disk.size} bytes in blocks of {disk.block_size}")
    block = bytearray(disk.block_size)
    block[:5] = b"hello"
    disk.write(0, block)
    disk.flush()
    assert disk.read(0, disk.block_size) == block
    # Into memory that exists, without a copy: bytearray, memoryview, array or numpy array.
    disk.read_into(0, block)
    print(block[:5].decode())
