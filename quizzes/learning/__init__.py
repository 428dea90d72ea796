"""Review schedule, selection, placement, calibration, progress and plan, computed from the facts in `quizzes.state`.

review       ratings and cards (FSRS), replayed from the facts
selection    questions to ask now
placement    first estimate from twelve questions
calibration  confidence against outcomes
progress     per topic, and a readiness score with its formula
plan         number of new questions per day
"""
