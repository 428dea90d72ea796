"""The interview: mock sessions with an interviewer that runs experiments, and the plan of the days before it."""
