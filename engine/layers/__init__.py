"""The building blocks of a decoder: linear maps, norms, rotary positions, embeddings, attention."""
