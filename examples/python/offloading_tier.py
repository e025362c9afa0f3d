"""What vLLM's offloading does with a secondary tier: python offloading_tier.py HOST:PORT/NQN?ns=1

A server needs no program, but the configuration that `help(nvlane.vllm)` has.
"""

import sys
from types import SimpleNamespace

import numpy
from nvlane.vllm import NvlaneTier
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

# In place of vLLM's: its configuration, and the memory of its CPU cache, 8 chunks of 2 MiB.
spec = SimpleNamespace(
    config=SimpleNamespace(
        groups=(),
        model=SimpleNamespace(name="meta-llama/Llama-3.1-8B", dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=SimpleNamespace(
            rank=0, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False
        ),
        replicated_layout=False,
        canonical_layout=False,
    ),
    blocks_per_chunk=1,
    kv_events_config=SimpleNamespace(enable_kv_cache_events=False),
)
memory = numpy.zeros((8, 2 << 20), numpy.int8)
memory[0] = 7
tier = NvlaneTier(spec, memoryview(memory), "NvlaneTier", sys.argv[1], prefix="example/", options={"lanes": 2})
request = ReqContext(req_id="request")
keys = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(2)]


def finish(job):
    tier.drain_jobs()
    (result,) = tier.get_finished_jobs()
    print(job, "succeeded" if result.success else "failed", f"in {result.transfer_time * 1e3:.1f} ms")


tier.submit_store(TransferJob(1, keys[:1], numpy.array([0]), False, request))
finish("store")
# The scheduler asks in one step, and has the answers in a later one.
while LookupResult.RETRY in (found := [tier.lookup(key, request) for key in keys]):
    tier.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))
print(found)
tier.submit_load(TransferJob(2, keys[:1], numpy.array([5]), True, request))
finish("load")
assert (memory[5] == 7).all()
tier.shutdown()
