"""What the facts in `quizzes.state` say about a learner, and what to ask next.

review       ratings and cards (FSRS), replayed from the facts
selection    which questions now
placement    a first estimate from twelve questions
calibration  does the learner know what they know?
progress     per topic, and one readiness number with its formula
plan         how many new questions a day fit
"""
