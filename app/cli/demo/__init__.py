"""`prep demo`: one minute with the live engine.

naive.py   part 1: a token at a time without and with a KV cache
pool.py    part 2: six requests in a block pool that is too small
drawing.py what both look like on a terminal
tour.py    the command: runs the parts and tells the story
"""

from app.cli.demo.tour import app as app
