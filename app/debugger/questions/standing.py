"""The learner's readiness per topic as bars."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from quizzes.learning.progress import FORMULA, TopicProgress


def show_readiness(topics: Iterable[TopicProgress]) -> None:
    """Draw a bar per topic that has been seen, the most ready first, and say what its length means."""
    seen = sorted((topic for topic in topics if topic.seen), key=lambda topic: -topic.readiness)
    for topic in seen:
        right = "" if topic.accuracy is None else f", {topic.accuracy:.0%} of the answers right"
        readiness = round(topic.readiness)
        name = topic.topic.replace("_", " ")
        st.progress(
            readiness, f"{name}: readiness {readiness} of 100; {topic.seen} of {topic.available} seen{right}"
        )
    st.caption(
        f"Readiness: {FORMULA}." if seen else "No answers yet. Answer a question, and its topic appears here."
    )
