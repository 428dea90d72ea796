"""Practice: experiments, the question bank, claims, grading, and what a learner has done. See README.md."""
