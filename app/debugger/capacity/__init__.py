"""Capacity: the load that a model on a GPU can serve, by formulas that explain themselves and by simulation.

    scenario.py       what is asked: model, GPU, traffic, limits
    steady_state.py   the load that traffic makes of a replica: Little's law and the length of a step
    figure.py         a number with its formula, the figures put in, its source, and what it leaves out
    figures.py        all of them, from the weights to the price of a token
    check.py          the same scenario through the real scheduler in virtual time, and why the two differ

No torch and no Streamlit in here.
"""
