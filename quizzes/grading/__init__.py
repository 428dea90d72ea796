"""Grade typed replies: parse, compare, explain. Prose is graded in `quizzes/free_text`."""

from quizzes.grading.grade import Graded, Part, asked_keys, check_reply, grade, reply_keys
from quizzes.grading.parse import Parsed, ParseError, parse, parse_interval

__all__ = [
    "Graded",
    "ParseError",
    "Parsed",
    "Part",
    "asked_keys",
    "check_reply",
    "grade",
    "parse",
    "parse_interval",
    "reply_keys",
]
