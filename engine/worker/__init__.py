"""One device's side of a step: state slots, input tensors, the KV cache, and the forward pass."""
