"""Distance of an implementation from the limits of this machine. Time, bytes and FLOPs, beside measured limits.

timing.py      medians, several candidates in turn
limits.py      this machine: copy and read bandwidth, GEMM rates
roofline.py    what an operation must move and compute at least
workloads.py   the shapes that are measured
yardsticks.py  what else computes the same: torch, FlashInfer
run.py         all of it together
questions.py   choices that only a GPU can settle: layout, split size, crossovers
results.py     RESULTS.md, and the targets
"""
