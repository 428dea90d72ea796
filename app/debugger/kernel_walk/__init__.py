"""Walk of paged attention over a request's block table at one step: pages, running softmax, bytes."""
