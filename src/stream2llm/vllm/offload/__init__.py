"""Host tier: KV blocks that lose their last owner are copied to host memory and come back by their hash.

A KV connector for stock vLLM (`kv_connector_module_path` is this package, `kv_connector` is `HostTierConnector`).
"""

from stream2llm.vllm.offload.connector import HostTierConnector, host_tier
from stream2llm.vllm.offload.tier import HostTierStatistics

__all__ = ["HostTierConnector", "HostTierStatistics", "host_tier"]
