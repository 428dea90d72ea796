"""Plausible mistakes in what grades a learner, and a way to run tests on a copy of `quizzes` that has one of them.

A mutant is a fresh import of `quizzes` with one module patched; afterwards the original modules are back.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutation import Mutation, read_mutations

ROOT = Path(__file__).resolve().parents[2]
FRESH = ("quizzes", "tests.quizzes", "app")
"""Packages that are imported anew."""
SHARED = ("quizzes.question", "quizzes.topics", "prep_common.paths", "quizzes.state", "tests.quizzes.mutants")
"""Except these: nothing in them is mutated, and building their models takes most of the time."""

MUTATIONS = read_mutations(r"""
grading.parse
    test_labelled_answers.test_a_typed_answer_gets_its_label
        the_first_number_of_a_text_is_taken in _split_number
            rest = text[match.end() :] => rest = ''
        a_minus_is_dropped in _split_number
            (-value if match['sign'] == '-' else value, rest.strip()) => (value, rest.strip())
        words_after_the_number_are_ignored in _unit_after_number
            if asked is None: ... => if asked is None: return 1, None
        a_figure_of_another_kind_is_taken_as_it_is in _unit_after_number
            why = _ if given else _ => if given: return 1, asked
        a_lone_prefix_is_taken_for_the_unit in _unit_after_number
            asked is not None and _needs_whole_unit(asked) => False
        a_percent_is_read_as_a_share in _not_a_share_for_percent
            asked.factor == 1 and number > 1 => False
        a_percent_sign_is_ignored in _quantity
            Parsed(typed * given.factor, ...) => Parsed(typed, ...)
        units_are_converted_the_wrong_way in _quantity
            typed * given.factor / asked.factor => typed * asked.factor / given.factor
        a_part_of_a_whole_number_is_cut_off in _int
            parsed.value.denominator != 1 => False
        anything_but_yes_is_no in _bool
            word in TRUE or word in FALSE => True
        a_comma_is_a_decimal_point_or_nothing in the module
            DIGITS = _1 => DIGITS = r'\d+(?:,\d+)+|' + _1
    test_grading.test_intervals
        the_unit_of_an_interval_belongs_to_its_upper_end in parse_interval
            low = f'{low} {tail}' => pass

grading.units
    test_labelled_answers.test_a_typed_answer_gets_its_label
        gb_is_gib in the module
            LOWER = _1 => LOWER = {**_1, 'g': 2**30}
        giga_is_binary in the module
            DECIMAL = _1 => DECIMAL = {**_1, 'G': 2**30}
        kibi_is_a_thousand in the module
            BINARY = _1 => BINARY = {**_1, 'Ki': 10**3}
        bits_are_bytes in the module
            BITS = _ => BITS = Fraction(1)
        a_rate_is_its_top in unit
            upper[1] / per => upper[1]
        a_rate_has_the_kind_of_its_top in unit
            f'{upper[0]}/{lower[0]}' => upper[0]

grading.check
    test_labelled_answers.test_a_typed_answer_gets_its_label
        the_bound_itself_is_wrong in _number_share
            abs(value - expected) <= check.abs * _ => abs(value - expected) < check.abs
        one_more_than_the_tolerance_is_right in _number_share
            check.abs * _ => check.abs + 1
        whole_numbers_are_tolerant in _number_share
            exact or check.exact => check.exact
        exact_floats_are_tolerant in _number_share
            exact or check.exact => exact
        the_worst_band_counts in _number_share
            max(reached, ...) => min(reached, ...)
        a_tolerance_is_doubled in the module
            FLOAT_REL = _1 => FLOAT_REL = 2 * _1
        the_order_of_a_list_is_ignored in _list_share
            value == wanted => sorted(value) == sorted(wanted)
        the_order_of_numbers_is_ignored in _list_share
            same = len(value) == len(wanted) and _1
            => same = len(value) == len(wanted) and _1 or sorted(value) == sorted(wanted)
        a_shorter_list_is_right in _list_share
            len(value) == len(wanted) and _1 => _1
        a_factor_forgives_the_sign in within_factor
            if value * expected <= 0: ...
            => value, expected = abs(value), abs(expected)\nif not value or not expected: ...
        zero_has_any_sign in _sign
            (value > 0) - (value < 0) => 1 if value > 0 else -1
        a_part_of_a_word_is_enough in share_of_points
            value == normal_word(_1) => value in normal_word(_1)
    test_grading.test_a_near_miss_is_remarked_upon
        off_by_two_is_off_by_one in slip
            abs(value - expected) == 1 => abs(value - expected) == 2
        the_slip_is_named_upside_down in slip
            value / expected => expected / value

grading.options
    test_grading.test_all_that_hold_is_graded_by_option
        wrong_options_cost_nothing in picked_share
            hits - wrong => hits
    test_grading.test_an_option_is_named_by_id_or_by_the_number_it_is_shown_with
        options_count_from_zero in _one
            shown[int(word) - 1] => shown[int(word) % len(shown)]
    test_grading.test_an_order_is_graded_by_neighbours
        an_order_may_leave_things_out in pick
            every and option not in chosen => False
        neighbours_count_in_both_directions in adjacent_share
            pair in pairs => pair in pairs or pair[::-1] in pairs

grading.grade
    test_grading.test_naming_a_wrong_option_beside_the_only_right_one_earns_nothing
        any_right_option_among_several_is_enough in _grade_options
            float(_ if len(right) == 1 else _) => float(bool(set(given) & set(right)))
    test_grading.test_all_that_hold_is_graded_by_option
        part_of_the_points_counts_as_right in _grade_options
            share >= 1 => share > 0
    test_grading.test_a_right_reply_is_never_a_mistake
        a_right_answer_is_called_a_mistake in _grade_answer
            ('', '') if ok else _1 => _1
    test_grading.test_a_wrong_reply_names_the_mistake_that_it_is_the_signature_of
        an_interval_never_misses in _grade_answer
            _1 <= float(expected) <= _2 => _1 <= float(parsed.value) <= _2
    test_grading.test_a_reply_that_cannot_be_read_scores_nothing
        a_missing_reply_is_wrong_instead_of_asked_for in grade
            for key in reply_keys(instance): check_reply(...)
            => replies = {key: replies.get(key) or '0' for key in [*replies, *reply_keys(instance)]}
    test_grading.test_the_right_number_in_the_wrong_unit_is_wrong_and_said_so
        one_right_part_makes_a_reply_right in Graded.all_right
            all(_1) => any(_1)

free_text.scoring
    test_free_text.test_probes_count_more_than_own_marks
        own_marks_count_as_much_as_probes in the module
            PROBE_SHARE = _ => PROBE_SHARE = 0.5
        a_failed_probe_lowers_no_mark in _point
            not all(probes) => False
        one_good_probe_is_enough in _point
            not all(probes) => not any(probes)
        weights_are_ignored in _mean
            total = _1 => weighted = [(1.0, value) for _, value in weighted]\ntotal = _1
    test_free_text.test_the_learners_word_alone_never_makes_an_answer_right_or_reviewed
        the_learners_word_is_enough in PointScore.is_checked
            self.is_heard or any(self.probes) => True
    test_free_text.test_probes_and_own_marks_make_an_answer_reviewed_and_only_a_judge_makes_it_right
        right_probes_make_prose_right in FreeGraded.outcome
            all(heard) if required else any(heard) => True
        one_heard_point_is_enough in FreeGraded.outcome
            all(heard) if required else any(heard) => any(point.is_heard for point in self.points)
    test_free_text.test_nonsense_is_not_right_whatever_is_marked_and_probed
        nonsense_is_a_hit in score
            _1 if is_on_topic else 'miss' => _1
    test_free_text.test_a_contradicted_point_makes_an_answer_wrong
        a_contradiction_is_forgiven in FreeGraded.outcome
            any(point.mark == 'contradicted' for point in self.points) => False
    test_prose_answers.test_an_all_wrong_essay_fails_whatever_is_marked_and_probed
        right_probes_carry_a_wrong_text in FreeGraded.outcome
            any(point.is_made for point in _1) => True
    test_prose_answers.test_an_answer_to_another_question_fails_whatever_is_marked_and_probed
        one_shared_word_is_enough in is_about
            len(said & known) >= _1 => bool(said & known)
    test_prose_answers.test_a_dishonest_learner_gets_nothing_for_prose_that_is_not_right
        a_list_of_terms_is_right in score
            not is_salad(answer) => True
        one_sentence_is_enough in the module
            SHORTEST = _ => SHORTEST = 1
        a_sentence_that_turns_a_point_around_is_forgiven in score
            'contradicted' if point.id in turned else _1 => _1
    test_free_text.test_only_what_is_there_earns_points
        unsure_is_half_right in the module
            VALUE: _ = _1 => VALUE = {**_1, 'unsure': 0.5}

free_text.judge
    test_free_text.test_a_quote_that_is_not_there_or_says_nothing_is_unsure
        a_quote_need_not_be_there in _checked
            _flat(quote) not in _flat(answer) => not quote
        one_word_is_a_quote in the module
            MIN_QUOTE_WORDS = _ => MIN_QUOTE_WORDS = 0
    test_free_text.test_passes_that_disagree_are_unsure
        the_first_pass_decides in mark
            _agreed(_1, _) => _agreed(_1, _1)
    test_free_text.test_the_answer_is_sent_as_data_in_two_orders
        both_passes_have_the_same_order in mark
            reversed(points) => points
    test_free_text.test_a_reply_in_another_form_is_unsure
        the_last_of_two_verdicts_on_a_point_counts in _read
            ids.count(name) == 1 => True
    test_free_text.test_a_verdict_that_is_none_is_unsure_even_with_a_quote
        an_unknown_verdict_is_kept in _checked
            verdict not in VERDICTS => not verdict

free_text.canaries
    test_free_text.test_canaries_are_half_right_half_wrong_and_the_same_every_time
        unsure_agrees_with_a_wrong_text in agrees
            ('miss', 'contradicted') => ('miss', 'contradicted', 'unsure')
    test_free_text.test_the_bounds_of_the_gate
        half_of_the_agreement_is_enough in the module
            AGREEMENT, FALSE_ACCEPTS = _1, _2 => AGREEMENT, FALSE_ACCEPTS = _1 / 2, _2
    test_free_text.test_a_bad_judge_does_not
        any_share_of_false_accepts_is_fine in the module
            AGREEMENT, FALSE_ACCEPTS = _1, _2 => AGREEMENT, FALSE_ACCEPTS = _1, 1.0
        obeyed_injections_are_not_counted in GateResult.failures
            if self.injections: ... => pass
        salads_are_not_looked_at in gate
            canary.kind in ('bad', 'salad') => canary.kind in ('bad',)
    test_free_text.test_a_few_canaries_prove_nothing
        a_few_canaries_are_enough in GateResult.failures
            self.canaries < AT_LEAST => self.canaries < 1

free_text.lints
    test_free_text.test_lints_ask_about_what_is_there
        a_year_needs_a_unit in the module
            _BARE_OK = _ => _BARE_OK = re.compile(r'18\d\d$')
    test_free_text.test_terms_in_a_row_are_asked_about_and_prose_is_not
        prose_is_called_a_salad in the module
            SALAD_FUNCTION_SHARE = _ => SALAD_FUNCTION_SHARE = 0.8
    test_free_text.test_a_sentence_nearer_to_the_opposite_is_asked_about
        the_right_statement_is_called_its_opposite in says_opposite
            wrong > _1 => wrong < _1

free_text.sentences
    test_prose_answers.test_a_dishonest_learner_gets_nothing_for_prose_that_is_not_right
        share_and_shares_are_two_words in the module
            _ENDINGS = _1 => _ENDINGS = _1[:-1]

free_text.polarity
    test_prose_answers.test_a_dishonest_learner_gets_nothing_for_prose_that_is_not_right
        negation_is_ignored in _signs
            word != 'nor' and not is_affirmed => is_affirmed
        every_word_order_is_the_same in _is_reordered
            _1 != _2 => False
    test_prose_answers.test_the_question_about_the_opposite_finds_negations_and_leaves_true_sentences_alone
        every_sentence_is_near_enough in the module
            NEAR = _ => NEAR = 0.1
    test_prose_answers.test_a_point_with_both_directions_is_compared_clause_by_clause
        directions_of_a_clause_are_those_of_the_sentence in is_opposite
            _has_turned_clause(sentence, right) => False
        clauses_of_two_words_are_not_compared in the module
            CLAUSE_WORDS = 2 => CLAUSE_WORDS = 6

claims.court
    test_court.test_the_engine_decides
        confirmed_and_refuted_are_swapped in verdict_of
            seen == {True} => seen == {False}
        most_cases_decide in verdict_of
            return 'depends' => return 'confirmed'
    test_court.test_cases_make_a_verdict
        an_undecided_case_is_left_out in verdict_of
            set(holds) => set(holds) - {None}
    test_court.test_the_form_of_a_claim_says_what_its_cases_decide
        one_right_case_confirms_every_claim in verdict_of
            form == 'existential' and _1 => _1
        one_wrong_case_refutes_every_claim in verdict_of
            form == 'universal' and _1 => _1
    test_court.test_parts_of_one_setting_must_hold_together
        each_part_is_a_case_of_its_own in decide_test
            case.setting if test.form == 'conjunctive' else number => number
    test_court.test_a_case_outside_the_claim_is_shown_and_not_counted
        every_case_counts in decide_test
            not case.outside and _1 => _1
    test_court.test_what_was_true_of_an_old_release_only_is_outdated
        the_past_counts_for_today in decide_test
            _1 and bool(case.until) == old => _1
    test_court.test_between_holds_and_fails_nothing_is_decided
        who_does_not_hold_fails in _hear
            not holds if case.fails is None else _ => not holds
    test_court.test_a_measurement_that_cannot_say_is_inconclusive_and_has_no_wording
        an_inconclusive_run_refutes in _hear
            CaseOutcome(_1, args, None, ...) => CaseOutcome(_1, args, False, ...)
    test_court.test_without_the_hardware_a_claim_is_skipped
        a_claim_without_its_hardware_is_inconclusive in judge
            Ruling(_1, _2, _3, 'skipped', ...) => Ruling(_1, _2, _3, 'inconclusive', ...)
    test_court.test_a_test_that_cannot_decide_is_broken_and_named
        a_number_is_a_truth in _decide
            if not isinstance(value, bool): ... => value = bool(value)
        arguments_of_the_case_are_ignored in arguments
            {**test.args, **more} => {**more, **test.args}
    test_court.test_a_flip_turns_the_first_case_over
        anything_turns_a_case_over in flip
            after.holds is (not before.holds) => after.holds is not None

learning.review
    test_learning.test_the_rating_follows_from_the_answer
        easy_in_spite_of_hints in rate
            hints or _1 => _1
        a_fast_guess_is_easy in rate
            confidence is not None and confidence >= SURE and _1 => _1
        twice_the_time_is_hard_already in rate
            seconds > 2 * minutes * 60 => seconds >= 2 * minutes * 60
        half_right_is_again in rate
            fraction >= PARTIAL => fraction > PARTIAL
    test_learning.test_an_unscored_attempt_without_a_rating_moves_no_card
        an_attempt_without_a_rating_moves_a_card in replay
            [_1 for a in attempts if a.rating] => [_1 for a in attempts]
    test_learning.test_a_guess_can_be_admitted_but_a_rating_never_raised
        a_rating_can_be_raised_afterwards in replay
            min(_1, downgrades.get(event.id, EASY)) => downgrades.get(event.id, _1)
    test_learning.test_the_order_in_which_facts_arrive_does_not_matter
        facts_count_in_order_of_arrival in replay
            sorted(events, ...) => events
    test_learning.test_four_lapses_suspend_a_card_until_it_is_resumed
        the_first_again_is_a_lapse in _reviewed
            card is not None and rating == AGAIN => rating == AGAIN
        a_resumed_card_keeps_its_lapses in replay
            card.lapses if _ else 0 => card.lapses
    test_learning.test_readiness_follows_its_formula
        a_right_answer_given_for_sure_is_a_surprise in is_surprise
            _1 and not attempt.correct and _2 => _1 and _2
    test_learning.test_due_goes_by_the_calendar_of_the_learner
        due_goes_by_the_hour in Card.is_due
            _ <= now.date() => self.due <= now

learning.calibration
    test_learning.test_the_brier_score_is_the_mean_squared_distance
        confidence_is_not_divided_by_100 in brier_score
            forecast.confidence / 100 => forecast.confidence
        the_distance_is_not_squared in brier_score
            _1 ** 2 => abs(_1)
        unscored_answers_are_forecasts in forecasts_of
            attempt.scored and _1 => _1
    test_learning.test_votes_on_claims_count_once_the_court_has_decided
        undecided_votes_are_wrong in forecasts_of
            vote.verdict is not None and _1 => _1
    test_learning.test_bins_are_shown_only_with_ten_forecasts
        nine_forecasts_are_a_bin in the module
            LEAST = 10 => LEAST = 9
    test_learning.test_intervals_report_hits_width_and_how_much_to_widen
        intervals_are_too_wide_for_their_promise in _widening
            math.ceil(_) => len(needed)
    test_learning.test_own_marks_are_set_beside_the_probes
        own_marks_are_unkind in own_marks
            marks['self'] - marks['probe'] => marks['probe'] - marks['self']

learning.placement
    test_learning.test_placement_finds_the_strong_and_the_weak
        a_right_answer_lowers_the_estimate in Placement.answer
            STEP if correct else -STEP => -STEP if correct else STEP
        the_second_question_goes_the_wrong_way in Placement._wanted
            1 if last.correct else -1 => -1 if last.correct else 1
    test_learning.test_placement_names_the_weakest_topic
        the_strongest_topic_comes_first in Placement.result
            result.correct / result.asked => -result.correct / result.asked
    test_learning.test_placement_is_repeatable_skips_what_cannot_be_decided_and_ends_on_a_small_bank
        a_skipped_question_comes_again in Placement.skip
            other.id != entry.id => True

learning.plan
    test_learning.test_the_plan_makes_learners_recall_15_percent_more
        the_least_new_questions_are_planned in plan
            score >= ALMOST * max(scores) => True
    test_learning.test_the_plan_fits_into_the_time_there_is
        reviews_take_no_time in _simulated
            REVIEW_TIME * len(due) => 0
    test_learning.test_no_new_questions_on_the_eve
        new_questions_come_on_the_last_day in plan
            left - LAST_DAYS => left
    test_learning.test_without_a_date_new_questions_leave_time_for_all_reviews
        reviews_wait_without_a_date in plan
            fitting[-1] if fitting else plans[0] => plans[-1]
    test_learning.test_a_plan_that_is_laid_out_as_it_was_made_has_the_same_recall
        a_layout_reviews_as_time_allows in _simulated
            limits is None => True

learning.selection
    test_learning.test_surprises_come_first_then_those_due_longest
        what_is_due_comes_before_surprises in in_order
            not c.surprise => c.surprise
        those_due_last_come_first in in_order
            c.due.date() => -c.due.toordinal()
        the_best_remembered_comes_first in in_order
            c.retrievability(now) => -c.retrievability(now)
    test_learning.test_four_lapses_suspend_a_card_until_it_is_resumed
        suspended_cards_are_reviewed in due
            not card.suspended => True
    test_learning.test_the_figures_are_never_those_of_the_last_time
        the_figures_of_last_time_come_again in figures_seed
            drawn if _ else _ => drawn
    test_learning.test_picking_is_deterministic_and_spreads_over_topics
        topics_come_one_after_another in spread
            [_1 for turn in range(rounds) for topic in topics if _2]
            => [_1 for topic in topics for turn in range(rounds) if _2]

lint
    test_bank.test_lint_finds_faults_of_options_and_of_right_answers_that_are_refused
        two_right_choices_pass in _at_seed
            len(expected['choice']) != 1 => len(expected['choice']) < 1
        two_options_may_read_the_same in _at_seed
            len(set(options)) < len(options) => False
        right_answers_that_are_refused_pass in _at_seed
            (yield from _refused(...)) => None
    test_bank.test_lint_finds_what_it_is_for
        nobody_asks_the_oracle in _at_seed
            not agree(...) => False
        an_oracle_may_differ_a_little in agree
            isclose(_1, _2, rel_tol=_, abs_tol=_3) => isclose(_1, _2, rel_tol=0.5, abs_tol=_3)
        hints_may_hold_the_answer in _given_away
            any(...) => False
        a_mistake_may_be_right in lint_truth
            (1 - MISTAKE_SHARE) * len(seeds) => len(seeds)
    test_bank.test_lint_says_how_often_a_mistake_or_a_witness_fails
        a_witness_need_not_pass in _witnesses
            not evaluate(...) => False

instance
    test_instance.test_both_ends_of_a_range_are_drawn
        the_upper_bound_is_never_drawn in _draw
            param.int_.hi + 1 => param.int_.hi
    test_instance.test_draws_lie_within_their_bounds_and_meet_what_is_required
        require_is_one_of_many in draw_params
            all(_1) => not require or any(_1)
    test_instance.test_both_ends_of_a_range_are_drawn
        every_learner_draws_the_same in draw
            label = _ => label = f'{question.id}:{question.revision}'
        a_new_attempt_draws_the_same in draw_params
            Random(_) => Random(label)
    test_instance.test_what_is_shown_is_shuffled_by_the_seed_and_complete
        choices_are_not_shuffled in Instance.choices
            Random(_).shuffle(shown) => None
    test_instance.test_a_template_that_reaches_out_is_refused_and_named
        templates_are_not_in_a_sandbox in _templates
            SandboxedEnvironment(...) => __import__('jinja2').Environment(...)
        unknown_names_are_blank in _templates
            SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=_1)
            => SandboxedEnvironment(keep_trailing_newline=_1)
    test_instance.test_a_choice_is_right_by_what_its_expression_says_of_the_result
        an_expression_of_a_choice_is_always_right in Instance._holds
            bool(_) if is_expression(right) else _ => bool(right)

expressions
    test_expressions.test_what_would_fill_the_machine_is_refused_at_once
        a_range_may_be_ten_times_as_long in the module
            _1 <= 10_000 => _1 <= 100_000
    test_expressions.test_what_is_no_computation_is_refused_and_quoted
        the_sandbox_is_python in evaluate
            evaluator.eval(...) => eval(source, dict(FUNCTIONS), dict(names))
        an_assignment_is_a_value in evaluate
            evaluator.eval(...) => evaluator.eval(source)
    test_expressions.test_lists_of_other_lengths_are_not_paired
        lists_are_zipped_as_far_as_they_go in the module
            zip(*args, strict=True) => zip(*args, strict=False)

experiments.measure
    test_measure.test_the_ratio_is_the_time_of_the_first_over_the_second
        the_ratio_is_upside_down in _summary
            first / second => second / first
    test_measure.test_a_noisy_pair_is_measured_more_often_and_within_its_time
        the_interval_is_half_as_wide in median_interval
            BOOTSTRAP_DRAWS // 40 => BOOTSTRAP_DRAWS // 4
    test_measure.test_the_two_take_turns_and_the_warm_up_is_not_counted
        the_warm_up_is_left_out in paired_ratio
            if warm_up: ... => pass

experiments.runner
    test_runner.test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless
        limits_go_by_the_clock in _Limit.check
            _processor_seconds(pid) - self.used_before => time.monotonic() - self.began
        earlier_runs_count_against_the_limit in _Limit.check
            _processor_seconds(pid) - self.used_before => _processor_seconds(pid)
        a_hanging_run_never_ends in _Limit.check
            _1 or time.monotonic() - self.began > _ => _1
        the_start_counts_against_the_limit in _Limit.begin
            time.monotonic() => self.asked
    test_runner.test_what_the_worker_tells_is_raised_here
        an_inconclusive_run_is_a_failure in _error
            kinds: _ = _1 => kinds = {**_1, 'inconclusive': RunFailed}
    test_runner.test_a_worker_that_does_not_start_and_one_that_grows_are_stopped
        memory_is_not_limited in _Limit.check
            used > self.megabytes => False

experiments.registry
    test_registry.test_values_out_of_bounds_are_refused
        items_of_a_list_have_no_bounds in _Argument.annotate
            Annotated[item, _1] if self.bounds else item => item
        optional_arguments_have_no_bounds in _Argument.annotate
            self.annotate(inner) | None => inner | None
    test_registry.test_the_docstring_declares_title_note_fields_units_and_meanings
        a_meaning_ends_with_its_line in Experiment._returns
            entries[-1] += ' ' + line.strip() => pass

experiments.results_cache
    test_runner.test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source
        the_key_has_no_seed in key_of
            [_1, _2, args, seed, _3] => [_1, _2, args, _3]
        the_key_has_no_arguments in key_of
            [_1, _2, args, seed, _3] => [_1, _2, seed, _3]
        an_edit_keeps_results in key_of
            [_1, _2, args, seed, source_revision()] => [_1, _2, args, seed]
        the_order_of_arguments_is_in_the_key in key_of
            json.dumps(parts, sort_keys=True, default=_1) => json.dumps(parts, default=_1)
    test_runner.test_only_a_measured_result_belongs_to_a_machine_and_to_a_day
        measured_results_are_kept_for_ever in read
            _1 > MEASURED_FOR_SECONDS => _1 > 1e12
    test_runner.test_a_result_of_another_experiment_is_not_read
        results_of_another_experiment_are_read in read
            kept['name'] == experiment.name => True

experiments.core_engine
    test_core_engine.test_blocks_are_those_that_requests_can_use
        the_null_block_is_one_of_those_asked_for in CoreEngine.__init__
            num_blocks + 1 => num_blocks
    test_core_engine.test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token
        requests_arrive_a_step_late in CoreEngine.run
            _1 <= self.num_steps => _1 < self.num_steps
    test_core_engine.test_prompts_given_as_lengths_share_nothing_and_equal_prompts_share_their_blocks
        prompts_given_as_lengths_are_all_the_same in CoreEngine._own_tokens
            self._next_token += _RANGE => pass
        recomputed_tokens_count_once in CoreEngine.step
            outcome.computed_tokens += row.num_tokens
            => outcome.computed_tokens = max(outcome.computed_tokens, row.start + row.num_tokens)
    test_core_engine.test_a_budget_cuts_a_prompt_into_chunks_and_only_the_last_gives_a_token
        a_chunk_gives_a_token in CoreEngine._answer
            _ >= request.num_tokens => True
    test_core_engine.test_a_preemption_is_seen_where_it_happens_and_its_work_is_counted_again
        preemptions_are_counted_for_whoever_ran in CoreEngine.step
            for request_id in out.preempted_request_ids: ...
            => for request_id in [row.request_id for row in out.scheduled if out.preempted_request_ids]: ...
""")


class _Loader(SourceFileLoader):
    """Loads a module with a mistake in it."""

    def __init__(self, mutation: Mutation, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(self.mutation.apply(source), f"<{self.mutation.name}>", "exec", dont_inherit=True)


class _Finder:
    """Finds the mutated module before the ordinary finders do."""

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
        sys.meta_path.insert(0, finder)
    try:
        tests = importlib.import_module(f"tests.quizzes.{test_file}")
        if finder is not None:
            importlib.import_module(finder.name)
        yield tests
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_fresh(name)]:
            del sys.modules[name]
        sys.modules.update(before)
