"""Runs: what there is to look at."""

from __future__ import annotations

import streamlit as st

from app.debugger.runs import list_runs
from app.debugger.session import select


def show() -> None:
    st.title("Runs")
    for entry in list_runs():
        if st.button(entry.run_id):
            select(run=entry.run_id)
