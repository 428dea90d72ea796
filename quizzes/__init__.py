"""Practice: experiments, question bank, claims, grading, and the learner's state. See README.md."""
