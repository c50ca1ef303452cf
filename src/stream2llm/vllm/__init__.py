"""Everything that touches vLLM's internals; `compat` lists each touched symbol. Importing this imports no vLLM."""
