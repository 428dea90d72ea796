"""The part of a step on one device: state slots, input tensors, KV cache, forward pass. Start with README.md."""
