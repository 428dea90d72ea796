"""How paged attention walks a request's block table at one step: pages, running softmax, bytes.

table.py     the exact part, from the trace: pages, block ids, tokens in them, bytes     no model needed
question.py  what the worker is asked, and why it sometimes cannot be
worker.py    a process of its own that loads the model and walks                         the only one with torch
client.py    starting it, asking it, ending it
sources.py   the lines of the kernels that do the same
walk.js      the drawing, and stepping through the pages
"""
