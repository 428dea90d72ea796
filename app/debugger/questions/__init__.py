"""The page Questions: `prep quiz` in the browser, over `quizzes.answering`."""
