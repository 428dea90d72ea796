"""Plausible mistakes in what grades a learner, each as a patch to a source, and a way to run tests on the patched one.

A mutant is a fresh import of `quizzes` with one text replaced: the modules that were there come back afterwards.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[2]
FRESH = ("quizzes", "tests.quizzes", "app")
"""Packages that are imported anew."""
SHARED = ("quizzes.question", "quizzes.topics", "quizzes.paths", "quizzes.state", "tests.quizzes.mutants")
"""Except these: nothing in them is mutated, and building their models takes most of the time."""


@dataclass(frozen=True)
class Mutation:
    name: str
    """What the mutant does, as a claim about it."""
    module: str
    """Under `quizzes`."""
    old: str
    new: str
    caught_by: str
    """The test that must fail: `test_file.test_function`."""


MUTATIONS = [
    # grading.parse
    Mutation(
        "the_first_number_of_a_text_is_taken",
        "grading.parse",
        "    rest = text[match.end() :]\n    if re",
        '    rest = ""\n    if re',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "words_after_the_number_are_ignored",
        "grading.parse",
        '    if asked is None:\n        raise ParseError(f"{_quote(rest)} after',
        '    if asked is None:\n        return 1, None\n        raise ParseError(f"{_quote(rest)} after',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_figure_of_another_kind_is_taken_as_it_is",
        "grading.parse",
        '    why = f"{found.kind} is another kind than',
        '    if found:\n        return 1, asked\n    why = f"{found.kind} is another kind than',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_percent_is_read_as_a_share",
        "grading.parse",
        'asked.text == "share" and number >= 2',
        "False",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_percent_sign_is_ignored",
        "grading.parse",
        "        return typed * found.factor, Parsed(None, found.text, float(typed))",
        "        return typed, Parsed(None, found.text, float(typed))",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "units_are_converted_the_wrong_way",
        "grading.parse",
        "value = typed * found.factor / asked.factor",
        "value = typed * asked.factor / found.factor",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_part_of_a_whole_number_is_cut_off",
        "grading.parse",
        "    if value.denominator != 1:\n        of =",
        "    if False:\n        of =",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_lone_prefix_is_taken_for_the_unit",
        "grading.parse",
        "        if asked is not None and _needs_whole_unit(asked):",
        "        if False:",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "anything_but_yes_is_no",
        "grading.parse",
        "    if word in TRUE or word in FALSE:",
        "    if True:",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_comma_is_a_decimal_point_or_nothing",
        "grading.parse",
        'DIGITS = r"\\d{1,3}(?:,\\d{3})+|',
        'DIGITS = r"\\d+(?:,\\d+)+|',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_minus_is_dropped",
        "grading.parse",
        '    return -value if match["sign"] == "-" else value, rest.strip()',
        "    return value, rest.strip()",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "the_unit_of_an_interval_belongs_to_its_upper_end",
        "grading.parse",
        '        low = f"{low} {tail}"\n',
        "        pass\n",
        "test_grading.test_intervals",
    ),
    # grading.units
    Mutation(
        "gb_is_gib",
        "grading.units",
        '        "gb": Fraction(10**9),',
        '        "gb": Fraction(2**30),',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "giga_is_binary",
        "grading.units",
        '"G": 10**9, "T": 10**12, "P": 10**15}',
        '"G": 2**30, "T": 10**12, "P": 10**15}',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "kibi_is_a_thousand",
        "grading.units",
        'BINARY = {"Ki": 2**10',
        'BINARY = {"Ki": 10**3',
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "bits_are_bytes",
        "grading.units",
        "BITS = Fraction(1, 8)",
        "BITS = Fraction(1)",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_rate_is_its_top",
        "grading.units",
        "upper[1] / per) if per",
        "upper[1]) if per",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_rate_has_the_kind_of_its_top",
        "grading.units",
        'f"{upper[0]}/{lower[0]}", upper[1] / per',
        "upper[0], upper[1] / per",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    # grading.check
    Mutation(
        "the_bound_itself_is_wrong",
        "grading.check",
        "abs(value - expected) <= check.abs * (1 + 1e-9)",
        "abs(value - expected) < check.abs",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "one_more_than_the_tolerance_is_right",
        "grading.check",
        "abs(value - expected) <= check.abs * (1 + 1e-9)",
        "abs(value - expected) <= check.abs + 1",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_tolerance_is_doubled",
        "grading.check",
        "FLOAT_REL = 0.02",
        "FLOAT_REL = 0.04",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "whole_numbers_are_tolerant",
        "grading.check",
        "    if exact or check.exact:",
        "    if check.exact:",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "exact_floats_are_tolerant",
        "grading.check",
        "    if exact or check.exact:",
        "    if exact:",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "the_order_of_a_list_is_ignored",
        "grading.check",
        "        same = value == wanted\n",
        "        same = sorted(value) == sorted(wanted)\n",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "the_order_of_numbers_is_ignored",
        "grading.check",
        "strict=True)\n        )\n    if same:",
        "strict=True)\n        )\n        same = same or sorted(value) == sorted(wanted)\n    if same:",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_shorter_list_is_right",
        "grading.check",
        "len(value) == len(wanted) and all(",
        "all(",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_factor_forgives_the_sign",
        "grading.check",
        "    if value * expected <= 0:\n        return False\n",
        "    value, expected = abs(value), abs(expected)\n"
        "    if not value or not expected:\n"
        "        return False\n",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "zero_has_any_sign",
        "grading.check",
        "return (value > 0) - (value < 0)",
        "return 1 if value > 0 else -1",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "the_worst_band_counts",
        "grading.check",
        "max(reached, default=0.0)",
        "min(reached, default=0.0)",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    Mutation(
        "a_part_of_a_word_is_enough",
        "grading.check",
        "value == normal_word(str(word)) for",
        "value in normal_word(str(word)) for",
        "test_labelled_answers.test_a_typed_answer_gets_its_label",
    ),
    # grading.options
    Mutation(
        "wrong_options_cost_nothing",
        "grading.options",
        "(hits - wrong) / len(right)",
        "hits / len(right)",
        "test_grading.test_all_that_hold_is_graded_by_option",
    ),
    Mutation(
        "options_count_from_zero",
        "grading.options",
        "return shown[int(word) - 1]",
        "return shown[int(word) % len(shown)]",
        "test_grading.test_an_option_is_named_by_id_or_by_the_number_it_is_shown_with",
    ),
    Mutation(
        "an_order_may_leave_things_out",
        "grading.options",
        "    if every and missing:",
        "    if False:",
        "test_grading.test_an_order_is_graded_by_neighbours",
    ),
    Mutation(
        "neighbours_count_in_both_directions",
        "grading.options",
        "kept = sum(pair in pairs for",
        "kept = sum(pair in pairs or pair[::-1] in pairs for",
        "test_grading.test_an_order_is_graded_by_neighbours",
    ),
    # grading.grade
    Mutation(
        "any_right_option_among_several_is_enough",
        "grading.grade",
        "float(set(chosen) == set(right) if len(right) == 1 else chosen[0] in right)",
        "float(bool(set(chosen) & set(right)))",
        "test_grading.test_naming_a_wrong_option_beside_the_only_right_one_earns_nothing",
    ),
    Mutation(
        "part_of_the_points_counts_as_right",
        "grading.grade",
        '    ok = share >= 1\n    mistake, say = ("", "") if ok else _mistake(instance, "choice"',
        '    ok = share > 0\n    mistake, say = ("", "") if ok else _mistake(instance, "choice"',
        "test_grading.test_all_that_hold_is_graded_by_option",
    ),
    Mutation(
        "a_right_answer_is_called_a_mistake",
        "grading.grade",
        '    mistake, say = ("", "") if ok else _mistake(instance, key, parsed.value, names)',
        "    mistake, say = _mistake(instance, key, parsed.value, names)",
        "test_grading.test_a_right_reply_is_never_a_mistake",
    ),
    Mutation(
        "an_interval_never_misses",
        "grading.grade",
        "hit=None if interval is None else interval[0] <= float(expected) <= interval[1],",
        "hit=None if interval is None else interval[0] <= float(parsed.value) <= interval[1],",
        "test_grading.test_a_wrong_reply_names_the_mistake_that_it_is_the_signature_of",
    ),
    Mutation(
        "a_missing_reply_is_wrong_instead_of_asked_for",
        "grading.grade",
        '    for key in reply_keys(instance):\n        check_reply(instance, key, replies.get(key, ""))\n',
        '    replies = {key: replies.get(key) or "0" for key in [*replies, *reply_keys(instance)]}\n',
        "test_grading.test_a_reply_that_cannot_be_read_scores_nothing",
    ),
    Mutation(
        "one_right_part_makes_a_reply_right",
        "grading.grade",
        "return all(part.ok for part in self.parts)",
        "return any(part.ok for part in self.parts)",
        "test_grading.test_the_right_number_in_the_wrong_unit_is_wrong_and_said_so",
    ),
    # grading.slips
    Mutation(
        "off_by_two_is_off_by_one",
        "grading.slips",
        "abs(value - expected) == 1:",
        "abs(value - expected) == 2:",
        "test_grading.test_a_near_miss_is_remarked_upon",
    ),
    Mutation(
        "the_slip_is_named_upside_down",
        "grading.slips",
        "math.isclose(value / expected, factor",
        "math.isclose(expected / value, factor",
        "test_grading.test_a_near_miss_is_remarked_upon",
    ),
    # free_text.scoring
    Mutation(
        "own_marks_count_as_much_as_probes",
        "free_text.scoring",
        "PROBE_SHARE = 0.6",
        "PROBE_SHARE = 0.5",
        "test_free_text.test_probes_count_more_than_own_marks",
    ),
    Mutation(
        "a_failed_probe_lowers_no_mark",
        "free_text.scoring",
        '"partial" if marked == "hit" and not all(probes)',
        '"partial" if marked == "hit" and False',
        "test_free_text.test_probes_count_more_than_own_marks",
    ),
    Mutation(
        "one_good_probe_is_enough",
        "free_text.scoring",
        "and not all(probes) else",
        "and not any(probes) else",
        "test_free_text.test_probes_count_more_than_own_marks",
    ),
    Mutation(
        "weights_are_ignored",
        "free_text.scoring",
        "    total = sum(weight for weight, _ in weighted)\n",
        "    weighted = [(1.0, value) for _, value in weighted]\n"
        "    total = sum(weight for weight, _ in weighted)\n",
        "test_free_text.test_probes_count_more_than_own_marks",
    ),
    Mutation(
        "a_contradiction_is_forgiven",
        "free_text.scoring",
        'return all(point.mark != "contradicted" for point in self.points) and all(',
        "return all(",
        "test_free_text.test_over_marking_is_the_gap_between_marks_and_probes",
    ),
    Mutation(
        "unsure_is_half_right",
        "free_text.scoring",
        '"contradicted": 0.0, "unsure": 0.0}',
        '"contradicted": 0.0, "unsure": 0.5}',
        "test_free_text.test_only_what_is_there_earns_points",
    ),
    Mutation(
        "over_marking_has_the_other_sign",
        "free_text.scoring",
        "VALUE[point.marked] - point.probe_share",
        "point.probe_share - VALUE[point.marked]",
        "test_free_text.test_over_marking_is_the_gap_between_marks_and_probes",
    ),
    # free_text.judge
    Mutation(
        "a_quote_need_not_be_there",
        "free_text.judge",
        "or _flat(quote) not in _flat(answer)",
        "or not quote",
        "test_free_text.test_a_quote_that_is_not_there_or_says_nothing_is_unsure",
    ),
    Mutation(
        "one_word_is_a_quote",
        "free_text.judge",
        "MIN_QUOTE_WORDS = 2",
        "MIN_QUOTE_WORDS = 0",
        "test_free_text.test_a_quote_that_is_not_there_or_says_nothing_is_unsure",
    ),
    Mutation(
        "the_first_pass_decides",
        "free_text.judge",
        "return [_agreed(first[point.id], second[point.id])",
        "return [_agreed(first[point.id], first[point.id])",
        "test_free_text.test_passes_that_disagree_are_unsure",
    ),
    Mutation(
        "both_passes_have_the_same_order",
        "free_text.judge",
        "list(reversed(points)), answer)",
        "list(points), answer)",
        "test_free_text.test_the_answer_is_sent_as_data_in_two_orders",
    ),
    Mutation(
        "the_last_of_two_verdicts_on_a_point_counts",
        "free_text.judge",
        " if ids.count(name) == 1}",
        "}",
        "test_free_text.test_a_reply_in_another_form_is_unsure",
    ),
    Mutation(
        "an_unknown_verdict_is_kept",
        "free_text.judge",
        "    if verdict not in VERDICTS:",
        "    if not verdict:",
        "test_free_text.test_a_verdict_that_is_none_is_unsure_even_with_a_quote",
    ),
    # free_text.canaries
    Mutation(
        "unsure_agrees_with_a_wrong_text",
        "free_text.canaries",
        'else ("miss", "contradicted"))',
        'else ("miss", "contradicted", "unsure"))',
        "test_free_text.test_canaries_are_half_right_half_wrong_and_the_same_every_time",
    ),
    Mutation(
        "half_of_the_agreement_is_enough",
        "free_text.canaries",
        "AGREEMENT, FALSE_ACCEPTS = 0.90, 0.05",
        "AGREEMENT, FALSE_ACCEPTS = 0.45, 0.05",
        "test_free_text.test_the_bounds_of_the_gate",
    ),
    Mutation(
        "any_share_of_false_accepts_is_fine",
        "free_text.canaries",
        "AGREEMENT, FALSE_ACCEPTS = 0.90, 0.05",
        "AGREEMENT, FALSE_ACCEPTS = 0.90, 1.00",
        "test_free_text.test_a_bad_judge_does_not",
    ),
    Mutation(
        "obeyed_injections_are_not_counted",
        "free_text.canaries",
        "        if self.injections:\n",
        "        if False:\n",
        "test_free_text.test_a_bad_judge_does_not",
    ),
    Mutation(
        "a_few_canaries_are_enough",
        "free_text.canaries",
        "        if self.canaries < AT_LEAST:",
        "        if self.canaries < 1:",
        "test_free_text.test_a_few_canaries_prove_nothing",
    ),
    Mutation(
        "salads_are_not_looked_at",
        "free_text.canaries",
        'if canary.kind in ("bad", "salad")]',
        'if canary.kind in ("bad",)]',
        "test_free_text.test_a_bad_judge_does_not",
    ),
    # free_text.lints
    Mutation(
        "a_year_needs_a_unit",
        "free_text.lints",
        "(?:19|20)\\d\\d$",
        "(?:18)\\d\\d$",
        "test_free_text.test_lints_ask_about_what_is_there",
    ),
    Mutation(
        "prose_is_called_a_salad",
        "free_text.lints",
        "SALAD_FUNCTION_SHARE = 0.2",
        "SALAD_FUNCTION_SHARE = 0.8",
        "test_free_text.test_terms_in_a_row_are_asked_about_and_prose_is_not",
    ),
    Mutation(
        "the_right_statement_is_called_its_opposite",
        "free_text.lints",
        "wrong > nearness(sentence, [point.say, *point.good])",
        "wrong < nearness(sentence, [point.say, *point.good])",
        "test_free_text.test_a_sentence_nearer_to_the_opposite_is_asked_about",
    ),
    # claims.court
    Mutation(
        "confirmed_and_refuted_are_swapped",
        "claims.court",
        '"confirmed" if seen == {True} else "refuted"',
        '"refuted" if seen == {True} else "confirmed"',
        "test_court.test_the_engine_decides",
    ),
    Mutation(
        "an_undecided_case_is_left_out",
        "claims.court",
        "    if None in seen or not seen:\n",
        "    seen -= {None}\n    if not seen:\n",
        "test_court.test_cases_make_a_verdict",
    ),
    Mutation(
        "most_cases_decide",
        "claims.court",
        '        return "depends"\n',
        '        return "confirmed"\n',
        "test_court.test_the_engine_decides",
    ),
    Mutation(
        "who_does_not_hold_fails",
        "claims.court",
        "(not holds) if case.fails is None else _decide(claim, case.fails, names)",
        "not holds",
        "test_court.test_between_holds_and_fails_nothing_is_decided",
    ),
    Mutation(
        "an_inconclusive_run_refutes",
        "claims.court",
        "return CaseOutcome(case.when, args, None, reason=str(reason)",
        "return CaseOutcome(case.when, args, False, reason=str(reason)",
        "test_court.test_a_measurement_that_cannot_say_is_inconclusive_and_has_no_wording",
    ),
    Mutation(
        "a_claim_without_its_hardware_is_inconclusive",
        "claims.court",
        '"test", "skipped", reason=why)',
        '"test", "inconclusive", reason=why)',
        "test_court.test_without_the_hardware_a_claim_is_skipped",
    ),
    Mutation(
        "a_number_is_a_truth",
        "claims.court",
        "    if not isinstance(value, bool):\n",
        "    value = bool(value)\n    if False:\n",
        "test_court.test_a_test_that_cannot_decide_is_broken_and_named",
    ),
    Mutation(
        "arguments_of_the_case_are_ignored",
        "claims.court",
        "for name, value in {**test.args, **more}.items()",
        "for name, value in {**more, **test.args}.items()",
        "test_court.test_a_test_that_cannot_decide_is_broken_and_named",
    ),
    Mutation(
        "anything_turns_a_case_over",
        "claims.court",
        "after.holds is (not before.holds)",
        "after.holds is not None",
        "test_court.test_a_flip_turns_the_first_case_over",
    ),
    # learning.review
    Mutation(
        "easy_in_spite_of_hints",
        "learning.review",
        "    if hints or seconds > 2 * minutes * 60:",
        "    if seconds > 2 * minutes * 60:",
        "test_learning.test_the_rating_follows_from_the_answer",
    ),
    Mutation(
        "a_fast_guess_is_easy",
        "learning.review",
        "confidence is not None and confidence >= SURE and seconds",
        "seconds",
        "test_learning.test_the_rating_follows_from_the_answer",
    ),
    Mutation(
        "twice_the_time_is_hard_already",
        "learning.review",
        "seconds > 2 * minutes * 60",
        "seconds >= 2 * minutes * 60",
        "test_learning.test_the_rating_follows_from_the_answer",
    ),
    Mutation(
        "half_right_is_again",
        "learning.review",
        "HARD if fraction >= PARTIAL",
        "HARD if fraction > PARTIAL",
        "test_learning.test_the_rating_follows_from_the_answer",
    ),
    Mutation(
        "an_unscored_attempt_moves_a_card",
        "learning.review",
        "for a in attempts if a.scored and a.rating]",
        "for a in attempts if a.rating]",
        "test_learning.test_an_unscored_attempt_moves_no_card",
    ),
    Mutation(
        "a_rating_can_be_raised_afterwards",
        "learning.review",
        "min(event.rating or AGAIN, downgrades.get(event.id, EASY))",
        "downgrades.get(event.id, event.rating or AGAIN)",
        "test_learning.test_a_guess_can_be_admitted_but_a_rating_never_raised",
    ),
    Mutation(
        "facts_count_in_order_of_arrival",
        "learning.review",
        "in sorted(events, key=lambda event: event[:2]):",
        "in events:",
        "test_learning.test_the_order_in_which_facts_arrive_does_not_matter",
    ),
    Mutation(
        "the_first_again_is_a_lapse",
        "learning.review",
        "(card is not None and rating == AGAIN)",
        "(rating == AGAIN)",
        "test_learning.test_four_lapses_suspend_a_card_until_it_is_resumed",
    ),
    Mutation(
        "a_resumed_card_keeps_its_lapses",
        "learning.review",
        "replace(card, suspended=False, lapses=0)",
        "replace(card, suspended=False)",
        "test_learning.test_four_lapses_suspend_a_card_until_it_is_resumed",
    ),
    Mutation(
        "a_right_answer_given_for_sure_is_a_surprise",
        "learning.review",
        "attempt.scored and not attempt.correct and",
        "attempt.scored and",
        "test_learning.test_readiness_follows_its_formula",
    ),
    Mutation(
        "due_goes_by_the_hour",
        "learning.review",
        "return self.due.astimezone(now.tzinfo).date() <= now.date()",
        "return self.due <= now",
        "test_learning.test_due_goes_by_the_calendar_of_the_learner",
    ),
    Mutation(
        "the_interview_caps_nothing",
        "learning.review",
        "return max(1, days // 3) if days > 0 else NO_CAP",
        "return NO_CAP",
        "test_learning.test_the_interview_caps_the_intervals",
    ),
    # learning.calibration
    Mutation(
        "confidence_is_not_divided_by_100",
        "learning.calibration",
        "(forecast.confidence / 100 - forecast.correct) ** 2 for",
        "(forecast.confidence - forecast.correct) ** 2 for",
        "test_learning.test_the_brier_score_is_the_mean_squared_distance",
    ),
    Mutation(
        "the_distance_is_not_squared",
        "learning.calibration",
        "(forecast.confidence / 100 - forecast.correct) ** 2 for",
        "abs(forecast.confidence / 100 - forecast.correct) for",
        "test_learning.test_the_brier_score_is_the_mean_squared_distance",
    ),
    Mutation(
        "unscored_answers_are_forecasts",
        "learning.calibration",
        "        if attempt.scored and attempt.confidence is not None",
        "        if attempt.confidence is not None",
        "test_learning.test_the_brier_score_is_the_mean_squared_distance",
    ),
    Mutation(
        "undecided_votes_are_wrong",
        "learning.calibration",
        "if vote.verdict is not None and vote.confidence",
        "if vote.confidence",
        "test_learning.test_votes_on_claims_count_once_the_court_has_decided",
    ),
    Mutation(
        "nine_forecasts_are_a_bin",
        "learning.calibration",
        "LEAST = 10",
        "LEAST = 9",
        "test_learning.test_bins_are_shown_only_with_ten_forecasts",
    ),
    Mutation(
        "intervals_are_too_wide_for_their_promise",
        "learning.calibration",
        "math.ceil(level * len(needed))",
        "len(needed)",
        "test_learning.test_intervals_report_hits_width_and_how_much_to_widen",
    ),
    Mutation(
        "own_marks_are_unkind",
        "learning.calibration",
        'marks["self"] - marks["probe"]',
        'marks["probe"] - marks["self"]',
        "test_learning.test_own_marks_are_set_beside_the_probes",
    ),
    # learning.placement
    Mutation(
        "a_right_answer_lowers_the_estimate",
        "learning.placement",
        "(STEP if correct else -STEP)",
        "(-STEP if correct else STEP)",
        "test_learning.test_placement_finds_the_strong_and_the_weak",
    ),
    Mutation(
        "the_second_question_goes_the_wrong_way",
        "learning.placement",
        "(1 if last.correct else -1)",
        "(-1 if last.correct else 1)",
        "test_learning.test_placement_finds_the_strong_and_the_weak",
    ),
    Mutation(
        "the_strongest_topic_comes_first",
        "learning.placement",
        "(found.correct / found.asked, found.hardest_right",
        "(-found.correct / found.asked, found.hardest_right",
        "test_learning.test_placement_names_the_weakest_topic",
    ),
    Mutation(
        "a_skipped_question_comes_again",
        "learning.placement",
        "if other.id != entry.id]",
        "if other]",
        "test_learning.test_placement_is_repeatable_skips_what_cannot_be_decided_and_ends_on_a_small_bank",
    ),
    # learning.selection
    Mutation(
        "what_is_due_comes_before_surprises",
        "learning.selection",
        "key=lambda c: (not c.surprise, c.retr",
        "key=lambda c: (c.surprise, c.retr",
        "test_learning.test_surprises_come_first_then_the_least_remembered",
    ),
    Mutation(
        "the_best_remembered_comes_first",
        "learning.selection",
        "c.retrievability(now), c.due",
        "-c.retrievability(now), c.due",
        "test_learning.test_surprises_come_first_then_the_least_remembered",
    ),
    Mutation(
        "suspended_cards_are_reviewed",
        "learning.selection",
        "        and not card.suspended\n",
        "",
        "test_learning.test_four_lapses_suspend_a_card_until_it_is_resumed",
    ),
    Mutation(
        "the_figures_of_last_time_come_again",
        "learning.selection",
        "return drawn if drawn != last else (drawn + 1) % SEEDS",
        "return drawn",
        "test_learning.test_the_figures_are_never_those_of_the_last_time",
    ),
    Mutation(
        "topics_come_one_after_another",
        "learning.selection",
        "for turn in range(rounds) for topic in topics if",
        "for topic in topics for turn in range(rounds) if",
        "test_learning.test_picking_is_deterministic_and_spreads_over_topics",
    ),
    # lint
    Mutation(
        "two_right_choices_pass",
        "lint",
        'len(expected["choice"]) != 1:',
        'len(expected["choice"]) < 1:',
        "test_bank.test_lint_finds_faults_of_options_and_of_right_answers_that_are_refused",
    ),
    Mutation(
        "an_oracle_may_differ_a_little",
        "lint",
        "rel_tol=1e-6, abs_tol=1e-9",
        "rel_tol=0.5, abs_tol=1e-9",
        "test_bank.test_lint_finds_what_it_is_for",
    ),
    Mutation(
        "nobody_asks_the_oracle",
        "lint",
        "        if not _agree(expected[answer_id] if",
        "        if False and not _agree(expected[answer_id] if",
        "test_bank.test_lint_finds_what_it_is_for",
    ),
    Mutation(
        "hints_may_hold_the_answer",
        "lint",
        "    return any(re.search(rf",
        "    return False and any(re.search(rf",
        "test_bank.test_lint_finds_what_it_is_for",
    ),
    Mutation(
        "a_mistake_may_be_right",
        "lint",
        "if count > (1 - MISTAKE_SHARE) * len(seeds):",
        "if count > len(seeds):",
        "test_bank.test_lint_finds_what_it_is_for",
    ),
    Mutation(
        "a_witness_need_not_pass",
        "lint",
        "            if not evaluate(follow_up.pass_",
        "            if False and not evaluate(follow_up.pass_",
        "test_bank.test_lint_says_how_often_a_mistake_or_a_witness_fails",
    ),
    Mutation(
        "two_options_may_read_the_same",
        "lint",
        "if len(set(options)) < len(options):",
        "if False:",
        "test_bank.test_lint_finds_faults_of_options_and_of_right_answers_that_are_refused",
    ),
    Mutation(
        "right_answers_that_are_refused_pass",
        "lint",
        "    yield from _refused(instance, result, expected)",
        "    yield from ()",
        "test_bank.test_lint_finds_faults_of_options_and_of_right_answers_that_are_refused",
    ),
    # instance
    Mutation(
        "the_upper_bound_is_never_drawn",
        "instance",
        "param.int_.hi + 1, param.int_.step",
        "param.int_.hi, param.int_.step",
        "test_instance.test_both_ends_of_a_range_are_drawn",
    ),
    Mutation(
        "require_is_one_of_many",
        "instance",
        "        if all(evaluate(condition, params)",
        "        if not question.require or any(evaluate(condition, params)",
        "test_instance.test_draws_lie_within_their_bounds_and_meet_what_is_required",
    ),
    Mutation(
        "every_learner_draws_the_same",
        "instance",
        '{question.revision}:{seed}:{attempt}")',
        '{question.revision}:{attempt}")',
        "test_instance.test_both_ends_of_a_range_are_drawn",
    ),
    Mutation(
        "a_new_attempt_draws_the_same",
        "instance",
        '{seed}:{attempt}")',
        '{seed}")',
        "test_instance.test_both_ends_of_a_range_are_drawn",
    ),
    Mutation(
        "choices_are_not_shuffled",
        "instance",
        '            Random(f"{self.id}:{self.seed}:order").shuffle(shown)\n'
        "        return shown\n"
        "\n"
        "    def items",
        "            pass\n        return shown\n\n    def items",
        "test_instance.test_what_is_shown_is_shuffled_by_the_seed_and_complete",
    ),
    Mutation(
        "templates_are_not_in_a_sandbox",
        "instance",
        "environment = SandboxedEnvironment(",
        "from jinja2 import Environment\n    environment = Environment(",
        "test_instance.test_a_template_that_reaches_out_is_refused_and_named",
    ),
    Mutation(
        "unknown_names_are_blank",
        "instance",
        "undefined=StrictUndefined, ",
        "",
        "test_instance.test_a_template_that_reaches_out_is_refused_and_named",
    ),
    Mutation(
        "an_expression_of_a_choice_is_always_right",
        "instance",
        "bool(evaluate(right, names)) if is_expression(right) else right is True",
        "bool(right)",
        "test_instance.test_a_choice_is_right_by_what_its_expression_says_of_the_result",
    ),
    # expressions
    Mutation(
        "a_range_may_be_ten_times_as_long",
        "expressions",
        "if len(range(*args)) <= 10_000 else None",
        "if len(range(*args)) <= 100_000 else None",
        "test_expressions.test_what_would_fill_the_machine_is_refused_at_once",
    ),
    Mutation(
        "the_sandbox_is_python",
        "expressions",
        'return evaluator.eval(source, ast.parse(source, mode="eval").body)',
        "return eval(source, dict(FUNCTIONS), dict(names))",
        "test_expressions.test_what_is_no_computation_is_refused_and_quoted",
    ),
    Mutation(
        "an_assignment_is_a_value",
        "expressions",
        'evaluator.eval(source, ast.parse(source, mode="eval").body)',
        "evaluator.eval(source)",
        "test_expressions.test_what_is_no_computation_is_refused_and_quoted",
    ),
    Mutation(
        "lists_are_zipped_as_far_as_they_go",
        "expressions",
        "list(zip(*args, strict=True))",
        "list(zip(*args, strict=False))",
        "test_expressions.test_lists_of_other_lengths_are_not_paired",
    ),
    # experiments.measure
    Mutation(
        "the_ratio_is_upside_down",
        "experiments.measure",
        "[first / second for first, second in pairs]",
        "[second / first for first, second in pairs]",
        "test_measure.test_it_is_the_time_of_the_first_over_the_second",
    ),
    Mutation(
        "the_median_decides",
        "experiments.measure",
        "        if self.lo > bound:\n",
        "        if self.median > bound:\n",
        "test_measure.test_an_interval_that_holds_the_bound_says_nothing",
    ),
    Mutation(
        "the_interval_is_half_as_wide",
        "experiments.measure",
        "edge = BOOTSTRAP_DRAWS // 40",
        "edge = BOOTSTRAP_DRAWS // 4",
        "test_measure.test_a_noisy_pair_is_measured_more_often_and_within_its_time",
    ),
    Mutation(
        "the_warm_up_is_left_out",
        "experiments.measure",
        "    if warm_up:\n",
        "    if False:\n",
        "test_measure.test_the_two_take_turns_and_the_warm_up_is_not_counted",
    ),
    # experiments.runner
    Mutation(
        "limits_go_by_the_clock",
        "experiments.runner",
        "_processor_seconds(pid) - self.used_before > self.seconds * CORES",
        "time.monotonic() - self.began > self.seconds * CORES",
        "test_runner.test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless",
    ),
    Mutation(
        "earlier_runs_count_against_the_limit",
        "experiments.runner",
        "_processor_seconds(pid) - self.used_before >",
        "_processor_seconds(pid) >",
        "test_runner.test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless",
    ),
    Mutation(
        "a_hanging_run_never_ends",
        "experiments.runner",
        "            or time.monotonic() - self.began > self.seconds * PATIENCE\n",
        "",
        "test_runner.test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless",
    ),
    Mutation(
        "the_start_counts_against_the_limit",
        "experiments.runner",
        "self.began, self.used_before = time.monotonic(),",
        "self.began, self.used_before = self.asked,",
        "test_runner.test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless",
    ),
    Mutation(
        "an_inconclusive_run_is_a_failure",
        "experiments.runner",
        '"inconclusive": Inconclusive,',
        '"inconclusive": RunFailed,',
        "test_runner.test_what_the_worker_tells_is_raised_here",
    ),
    Mutation(
        "memory_is_not_limited",
        "experiments.runner",
        "        if used > self.megabytes:",
        "        if False:",
        "test_runner.test_a_worker_that_does_not_start_and_one_that_grows_are_stopped",
    ),
    # experiments.results_cache
    Mutation(
        "the_key_has_no_seed",
        "experiments.results_cache",
        "experiment.version, args, seed, source",
        "experiment.version, args, source",
        "test_runner.test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source",
    ),
    Mutation(
        "the_key_has_no_arguments",
        "experiments.results_cache",
        "experiment.version, args, seed, source",
        "experiment.version, seed, source",
        "test_runner.test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source",
    ),
    Mutation(
        "an_edit_keeps_results",
        "experiments.results_cache",
        "args, seed, source_revision()]",
        "args, seed]",
        "test_runner.test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source",
    ),
    Mutation(
        "measured_results_are_kept_for_ever",
        "experiments.results_cache",
        "> MEASURED_FOR_SECONDS",
        "> 1e12",
        "test_runner.test_only_a_measured_result_belongs_to_a_machine_and_to_a_day",
    ),
    Mutation(
        "the_order_of_arguments_is_in_the_key",
        "experiments.results_cache",
        "json.dumps(parts, sort_keys=True, default=str)",
        "json.dumps(parts, default=str)",
        "test_runner.test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source",
    ),
    Mutation(
        "results_of_another_experiment_are_read",
        "experiments.results_cache",
        ' if kept["name"] == experiment.name else None',
        "",
        "test_runner.test_a_result_of_another_experiment_is_not_read",
    ),
    # experiments.core_engine
    Mutation(
        "the_null_block_is_one_of_those_asked_for",
        "experiments.core_engine",
        "            num_blocks + 1, block_size",
        "            num_blocks, block_size",
        "test_core_engine.test_blocks_are_those_that_requests_can_use",
    ),
    Mutation(
        "requests_arrive_a_step_late",
        "experiments.core_engine",
        "while waiting and waiting[-1].arrival <= self.num_steps:",
        "while waiting and waiting[-1].arrival < self.num_steps:",
        "test_core_engine.test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token",
    ),
    Mutation(
        "prompts_given_as_lengths_are_all_the_same",
        "experiments.core_engine",
        "            self._next_token += _RANGE\n",
        "",
        "test_core_engine.test_prompts_given_as_lengths_share_nothing_and_equal_prompts_share_their_blocks",
    ),
    Mutation(
        "recomputed_tokens_count_once",
        "experiments.core_engine",
        "            outcome.computed_tokens += row.num_tokens\n",
        "            outcome.computed_tokens = max(outcome.computed_tokens, row.start + row.num_tokens)\n",
        "test_core_engine.test_prompts_given_as_lengths_share_nothing_and_equal_prompts_share_their_blocks",
    ),
    Mutation(
        "a_chunk_gives_a_token",
        "experiments.core_engine",
        "            if row.start + row.num_tokens >= request.num_tokens:",
        "            if True:",
        "test_core_engine.test_a_budget_cuts_a_prompt_into_chunks_and_only_the_last_gives_a_token",
    ),
    Mutation(
        "preemptions_are_counted_for_whoever_ran",
        "experiments.core_engine",
        "        for request_id in out.preempted_request_ids:\n"
        "            self.outcomes[request_id].preemptions.append(index)\n",
        "        for row in out.scheduled if out.preempted_request_ids else ():\n"
        "            self.outcomes[row.request_id].preemptions.append(index)\n",
        "test_core_engine.test_a_preemption_is_seen_where_it_happens_and_its_work_is_counted_again",
    ),
]


class _Loader(SourceFileLoader):
    """A module whose source has one text replaced."""

    def __init__(self, mutation: Mutation, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        count = source.count(self.mutation.old)
        if count != 1:
            raise ValueError(f"{self.mutation.name}: its text occurs {count} times in {self.path}")
        changed = source.replace(self.mutation.old, self.mutation.new)
        return compile(changed, f"<{self.mutation.name}>", "exec", dont_inherit=True)


class _Finder:
    """Finds the mutated module before anybody else does."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.name = f"quizzes.{mutation.module}"
        self.path = ROOT / "quizzes" / f"{mutation.module.replace('.', '/')}.py"

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = _Loader(self.mutation, fullname, str(self.path))
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def _is_fresh(name: str) -> bool:
    def inside(package: str) -> bool:
        return name == package or name.startswith(f"{package}.")

    return any(map(inside, FRESH)) and not any(map(inside, SHARED))


@contextmanager
def mutated(mutation: Mutation | None, test_file: str) -> Iterator[ModuleType]:
    """A module of tests/quizzes that sees `quizzes` with a mistake in it (or none)."""
    before = {name: module for name, module in sys.modules.items() if _is_fresh(name)}
    for name in before:
        del sys.modules[name]
    finder = _Finder(mutation) if mutation is not None else None
    if finder is not None:
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        tests = importlib.import_module(f"tests.quizzes.{test_file}")
        if finder is not None:
            importlib.import_module(finder.name)
        yield tests
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [name for name in sys.modules if _is_fresh(name)]:
            del sys.modules[name]
        sys.modules.update(before)
