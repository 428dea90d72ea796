"""A block allocator that hands out what it keeps."""
