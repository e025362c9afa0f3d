"""Keeps many reads outstanding from one thread: python many_reads.py HOST:PORT/NQN?ns=1"""

import asyncio
import sys
import time

import nvlane.aio


async def main(address: str) -> None:
    async with await nvlane.aio.Blocks.open(address, lanes=2) as disk:
        blocks = disk.size // disk.block_size
        start = time.perf_counter()

        async def reader(first: int) -> None:
            buffer = bytearray(disk.block_size)
            for turn in range(100):
                await disk.read_into((first + turn * 7919) % blocks * disk.block_size, buffer)

        await asyncio.gather(*(reader(first) for first in range(32)))
        seconds = time.perf_counter() - start
        print(f"3200 reads of {disk.block_size} bytes, 32 at the same time, in {seconds:.2f} s")


asyncio.run(main(sys.argv[1]))
