"""Daily plan until the interview: activities, their layout, calendar files, check-off lists."""
