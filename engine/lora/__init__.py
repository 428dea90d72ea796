"""Many fine-tuned models for the price of one: low-rank adapters beside shared weights. Start with README.md."""
