"""Models: reading a checkpoint's configuration and weights, and the architectures that use them."""
