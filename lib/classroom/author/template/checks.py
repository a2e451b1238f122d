"""What is graded: tests of a student's code, the `subject`, on inputs from a `case`."""

from classroom.exercise.expect import (
    exercise,
    expect_agrees,
    expect_inputs_unchanged,
    expect_law,
    points,
)
from classroom.exercise.prepared import oracle


def rows(case):
    """Draw the arguments; all sizes differ, so that exchanging two axes is noticed."""
    length, width = case.size("length", 5), case.size("width", 3)
    return (case.normal(length, width),)


# An oracle computes a correct answer: students get its results, not its body.
@oracle
def by_hand(x):
    means = x.clone()
    for position in range(len(x)):
        means[position] = x[: position + 1].mean(dim=0)
    return means


@exercise(
    "running_mean",
    number="10.1",
    title="The mean so far",
    asks="Return a tensor like x whose row t is the mean of the rows 0 to t of x.",
    difficulty=1,
    importance=3,
    minutes=10,
)
class TestRunningMean:
    # The name of a check is a sentence; students read it.
    @points(2)
    def test_each_row_is_the_mean_of_itself_and_the_rows_before(self, subject, case):
        axes = {"means": "length width"}
        expect_agrees(subject, case, "running_mean", rows, by_hand, axes)
        expect_inputs_unchanged(subject, case, "running_mean", rows)

    # A law says how an answer behaves, without computing one. It returns None, or what is
    # wrong. This one holds for `return x`, too, so it counts only with the check above.
    @points(1, only_with="test_each_row_is_the_mean_of_itself_and_the_rows_before")
    def test_the_first_row_stays(self, subject, case):
        def law(means, x):
            stays = (means[0] - x[0]).abs().max() < 1e-9
            return None if stays else "row 0 is not row 0 of x"

        expect_law(subject, case, "running_mean", rows, law)
