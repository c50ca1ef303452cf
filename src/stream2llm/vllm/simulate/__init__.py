"""The production scheduler and stock KV-cache manager on a virtual clock; step times come from a cost profile.

No model runs: every figure from here is simulated, and says so.
"""

from stream2llm.vllm.simulate.engine import SimulatedEngine
from stream2llm.vllm.simulate.log import Load, simulate
from stream2llm.vllm.simulate.run import Simulation

__all__ = ["Load", "SimulatedEngine", "Simulation", "simulate"]
