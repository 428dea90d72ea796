"""The page Drill room: one module per part. `held.py` keeps a drill with one tab, and its runs in a child process."""
