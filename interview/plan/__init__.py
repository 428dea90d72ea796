"""What to do on each day until the interview: activities, their layout, calendar files, check-off lists."""
