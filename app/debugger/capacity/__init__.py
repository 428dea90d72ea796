"""Capacity: what a model on a GPU serves, by arithmetic whose every number explains itself, and by simulation beside it.

    scenario.py       what is asked: model, GPU, traffic, limits
    steady_state.py   the load that traffic makes of a replica: Little's law and the length of a step
    figures.py        the numbers as a tree: formula, the figures put in, source, what it leaves out
    check.py          the same scenario through the real scheduler in virtual time, and why the two differ

No torch and no Streamlit in here.
"""
