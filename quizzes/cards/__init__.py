"""Reference cards: engines, hardware, papers with a claim that runs in miniature, releases of vLLM. See README.md."""
