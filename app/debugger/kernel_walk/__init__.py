"""How paged attention walks a request's block table at one step: pages, running softmax, bytes."""
