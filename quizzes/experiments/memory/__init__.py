"""KV cache bytes, paging, block tables, allocators, fragmentation."""
