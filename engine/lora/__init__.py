"""LoRA: low-rank adapters beside shared weights, many in one batch. Start with README.md."""
