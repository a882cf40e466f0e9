"""Modules with the interface of other libraries: `modelopt`, `vllm` and `axolotl`. Each is imported on its own."""
