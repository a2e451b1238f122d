"""Each attack in the instructors' table has tests that fail if its hole comes back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# By the first words of a row: files below tests/, and sentences that begin a test's name.
HELD_BY = {
    "a test that counts": """
        classroom/exercise/test_expect.py verdicts_by_the_number_of_the_call_earn_nothing
        classroom/exercise/test_run.py checks_run_in_an_order_drawn_from_the_seed
        classroom/sandbox/test_job.py no_call_finds_what_another_left
    """,
    "answers recorded": """
        classroom/exercise/test_expect.py verdicts_played_again_earn_nothing_on_another_seed
        exercises/test_checks.py what_was_recorded_on_the_published_seed_earns_nothing_on_another
    """,
    "functions passed to a test": """
        classroom/exercise/test_expect.py implementations_are_called_by_one_signature
        classroom/sandbox/test_job.py two_lent_functions_that_fail_alike_cannot_be_told_apart
    """,
    "one of the course's models, one bit": """
        exercises/test_capstone.py weights_of_the_course_are_known_again_when_a_bit_is_flipped
    """,
    "the same, its neurons": """
        exercises/test_capstone.py weights_of_the_course_are_known_again_when_their_neurons
    """,
    "a tokenizer made": """
        exercises/test_capstone.py what_was_learned_from_the_held_out_part_does_not_count
        exercises/test_capstone.py a_tokenizer_that_does_not_fit_is_refused
    """,
    "an answer that notices": """
        classroom/exercise/test_run.py no_failure_is_explained_before_all_checks_are_decided
        exercises/test_malformed.py a_malformed_answer_gets_a_sentence_about_itself
        classroom/sandbox/test_job.py calls_that_explain_a_failure_tell_later_ones_nothing
        exercises/test_sealed.py an_answer_is_not_told_that_an_earlier_one_was_wrong
    """,
    "a test that lists": """
        exercises/test_checks.py a_list_of_results_is_no_test
    """,
    "a test that rejects what": """
        classroom/sandbox/test_job.py a_call_without_trace_tells_the_next_one_nothing
        classroom/sandbox/test_job.py a_call_reaches_no_function_that_was_lent_to_another
        exercises/test_sealed.py a_test_that_rejects_what_differs_from_most_earns_nothing
    """,
    "one of the course's models, one token": """
        exercises/test_capstone.py weights_of_the_course_are_known_again_when_text_is_cut
        exercises/test_capstone.py weights_of_the_course_are_known_again_when_a_row_is_changed
    """,
    "the same, trained on": """
        exercises/test_capstone.py weights_of_the_course_are_known_again_after_a_short_training
    """,
    "a state that is kept": """
        exercises/test_checks.py what_only_keeps_a_law_earns_nothing
    """,
    "operations of torch": """
        classroom/calls/test_local.py what_is_to_be_done_by_hand_is_not_done_by_torch
        classroom/sandbox/test_job.py what_is_to_be_done_by_hand_is_not_done_by_torch_there
    """,
    "a pause": """
        classroom/exercise/test_expect.py a_pause_spares_no_function_the_question_of_other_sizes
    """,
    "an error, or the end": """
        classroom/exercise/test_run.py a_gradient_that_is_cut_costs_the_smallest_check
        exercises/test_sealed.py a_process_that_ends_where_a_gradient_is_asked_for_costs_a_check
    """,
    "an answer that says": """
        classroom/sandbox/test_job.py code_that_only_says_that_its_time_is_over_is_not_believed
    """,
    "no gradients": """
        classroom/exercise/test_run.py a_gradient_is_asked_of_each_function_whatever_the_others
    """,
    "a model of zeros": """
        exercises/test_capstone.py a_model_that_computes_nothing_earns_nothing
    """,
    "all parts of a batch": """
        exercises/test_checks.py a_mistake_is_caught_and_named_and_no_other_is
        exercises/test_checks.py a_model_that_is_lent_must_be_used
        exercises/test_checks.py what_is_kept_for_a_second_backward_pass_is_not_one_part_at
    """,
    "a table of all results": """
        exercises/test_checks.py a_table_of_what_many_seeds_asked_earns_nothing_on_another
    """,
    "a mask that is always": """
        exercises/test_checks.py what_only_keeps_a_law_earns_nothing
    """,
    "a function that returns nothing": """
        exercises/test_checks.py inputs_are_not_left_alone_for_points_by_what_answers_nothing
    """,
    "an answer that obeys a law": """
        exercises/test_checks.py what_only_keeps_a_law_earns_nothing
    """,
    "a course in": """
        classroom/sandbox/test_layers.py a_course_that_submissions_could_read_is_refused
    """,
    "a false entry": """
        exercises/test_checks.py what_a_model_that_is_lent_remembers_depends_on_the_dtype
        hostile/test_neighbours.py what_a_lent_function_remembers_of_one_student_is_unknown
    """,
    "many busy processes": """
        classroom/grader/test_run.py what_was_too_slow_beside_others_is_tried_again_alone
        classroom/sandbox/test_job.py processes_that_compute_side_by_side_lower_their_priority
        hostile/test_neighbours.py honest_students_get_exactly_what_they_get_alone
    """,
    "huge inputs": """
        classroom/grader/test_processes.py a_fork_is_held_to_its_limits
        classroom/sandbox/test_job.py a_function_of_ours_is_not_computed_for_inputs_of_any_size
        classroom/sandbox/test_job.py a_lent_function_is_held_to_the_time_of_the_exercise
        hostile/test_neighbours.py what_a_lent_function_computes_is_bounded_by_lengths
    """,
    "endless output": """
        classroom/sandbox/test_job.py outputs_count_with_their_keys_and_names
        hostile/test_neighbours.py all_cells_together_show_a_bounded_amount
    """,
    "thousands of files": """
        classroom/grader/test_collect.py what_one_student_has_too_much_of_costs_no_other_one
    """,
    "memory in sockets": """
        classroom/sandbox/test_job.py pending_signals_are_limited_for_each_job
        classroom/sandbox/test_job.py sockets_count_as_memory
    """,
    "shared memory": """
        classroom/sandbox/test_job.py memory_that_counts_for_no_process_is_refused
    """,
    "one answer, copied": """
        classroom/grader/test_submission.py what_cannot_be_graded_is_refused_in_a_sentence
    """,
    "a forged gradient": """
        classroom/exercise/test_run.py a_forged_answer_costs_a_check_and_never_the_report
    """,
    "odd results": """
        classroom/calls/test_wire.py a_tensor_of_very_many_dimensions_does_not_cross_either_way
        exercises/test_malformed.py a_malformed_answer_gets_a_sentence_about_itself
    """,
    "a file name that is not text": """
        classroom/grader/test_collect.py a_name_that_is_no_utf_8_costs_its_own_file
    """,
    "weights that come days": """
        classroom/grader/test_collect.py a_wanted_file_that_comes_late_makes_its_notebook_late
        classroom/grader/test_submission.py the_last_of_the_wanted_files_says_when
    """,
    "a file called as on": """
        classroom/grader/test_collect.py a_file_called_as_on_another_platform_is_still_that_of_who
        classroom/grader/test_collect.py a_folder_called_as_another_one_but_for_what_is_not_seen
        classroom/grader/test_roster.py a_number_that_two_submissions_claim_is_nobodys
    """,
    "HTML that grows": """
        classroom/nbgrader/test_feedback.py what_is_short_and_costs_much_is_shown_as_text
        classroom/nbgrader/test_feedback.py a_page_that_cannot_be_made_costs_no_other_one
    """,
    "names with formulas": """
        classroom/grader/test_collect.py a_name_that_a_spreadsheet_computes_is_refused
        classroom/grader/test_verdicts.py a_spreadsheet_does_not_compute_a_name
        classroom/nbgrader/test_feedback.py a_name_does_not_turn_the_text_beside_it
    """,
    "a full disk": """
        classroom/grader/test_run.py scores_are_kept_although_the_gradebook_is_locked
        classroom/nbgrader/test_gradebook.py a_locked_gradebook_is_reported_in_a_sentence
        classroom/test_main.py a_full_disk_is_reported_with_the_file_that_it_has_no_room_for
    """,
    "honest: torch": """
        classroom/sandbox/test_job.py an_answer_does_not_wait_for_threads_of_a_cell
        hostile/test_honest_notebooks.py an_honest_style_earns_everything_here_and_there
    """,
    "honest: all answers": """
        classroom/grader/test_submission.py an_answer_in_another_cell_is_checked_below_it_and_no
        classroom/sandbox/test_job.py a_cell_that_only_adds_leaves_what_is_defined
    """,
    "honest: a module": """
        classroom/sandbox/test_job.py a_module_that_a_cell_has_written_is_found_by_the_next
        classroom/sandbox/test_job.py what_answers_print_and_warn_of_is_discarded
        classroom/sandbox/test_layers.py one_user_and_one_machine_are_known_by_name
    """,
}


def rows():
    """The first cell of each row of the table."""
    text = (ROOT / "book/grading.md").read_text(encoding="utf-8")
    section = text.partition("\n(sec-adversary)=")[2].partition("\n## What the checks catch")[0]
    _, _, *found = re.findall(r"(?m)^\|(.*?)\|", section)
    return [row.strip() for row in found]


def test_every_attack_of_the_table_is_held_off_by_a_test_and_no_other_is_listed():
    for row, beginning in zip(rows(), HELD_BY, strict=True):
        assert row.startswith(beginning)


@pytest.mark.parametrize("beginning", HELD_BY)
def test_the_tests_that_hold_off_an_attack_exist(beginning):
    for line in HELD_BY[beginning].strip().splitlines():
        file, sentence = line.split()
        assert f"\ndef test_{sentence}" in (TESTS / file).read_text(encoding="utf-8"), line
