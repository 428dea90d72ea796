"""Capacity plans: the settings of `prep capacity plan.yaml`, and the arithmetic of money and regions.

quantity.py     "10 req/s", "EUR 2.5/h", "80 GB/s": one parser for all numbers with units
plan_file.py    the plan itself, checked
money.py        cost by volume, break-even with a price per token
regions.py      latency between regions, capacity that survives a failure
serve_command.py  options of `vllm serve`, checked against vLLM's own list
examples/       plans to start from
"""
