"""Who writes a date that a model misreads can be told; what else a task does, its commands show."""

import datetime
from collections import Counter

import pytest
import torch

from groundup.training.tasks import DateAnswer, DatesTask, count_correct

DAY = datetime.date(2031, 5, 3)


@pytest.fixture(scope="module")
def task():
    return DatesTask()


@pytest.fixture(scope="module")
def untrained(task):
    return task.new_model("tiny", 64, torch.Generator().manual_seed(0)).eval()


def an_answer(locale: str, style: str, answer: str) -> DateAnswer:
    return DateAnswer(locale, style, "3.5.2031", "2031-05-03", answer)


# By hand


@pytest.mark.parametrize(
    ("answer", "is_correct"),
    [("2031-05-03", True), ("2031-05-30", False), ("2031-05-0", False), ("", False)],
)
def test_an_answer_is_correct_if_every_character_is(answer, is_correct):
    assert an_answer("cs", "short", answer).is_correct is is_correct


@pytest.mark.parametrize(
    ("part", "counts"),
    [("locale", {"hr": (1, 3), "pl": (2, 2)}), ("style", {"full": (2, 3), "short": (1, 2)})],
)
def test_right_answers_are_counted_for_each_locale_and_for_each_style(part, counts):
    answers = [
        an_answer("hr", "full", "2031-05-03"),
        an_answer("hr", "full", "2031-03-05"),
        an_answer("pl", "full", "2031-05-03"),
        an_answer("hr", "short", "2031-03-05"),
        an_answer("pl", "short", "2031-05-03"),
    ]
    assert count_correct(answers, part) == counts
    assert count_correct([], part) == {}


# Laws


def test_an_answer_says_who_writes_the_day_so(task, untrained):
    choices = [(DAY, ("de", "EEEE, d. MMMM y")), (DAY, ("fr", "dd/MM/y"))]
    answers = task.answer(untrained, choices)
    assert [answer[:4] for answer in answers] == [
        ("de", "full", "Samstag, 3. Mai 2031", "2031-05-03"),
        ("fr", "short", "03/05/2031", "2031-05-03"),
    ]
    assert not any(answer.is_correct for answer in answers)


def test_each_answer_belongs_to_its_own_day(task, untrained, monkeypatch):
    """A model that reads without error: every date as its target, in another order than drawn."""
    generator = torch.Generator().manual_seed(3)
    choices = task.data.choose(13, generator, task.data.validation_days)
    known = {
        pair.source: pair.target for day, form in choices for pair in [task.data.write(day, form)]
    }
    monkeypatch.setattr(
        "groundup.training.tasks.translate_texts",
        lambda model, texts, *_: [known[text] for text in texts],
    )
    answers = task.answer(untrained, choices)
    assert all(answer.is_correct for answer in answers)
    by_locale = count_correct(answers, "locale")
    assert Counter({locale: in_all for locale, (_, in_all) in by_locale.items()}) == Counter(
        locale for _, (locale, _) in choices
    )


def test_the_days_decide_what_is_measured(task, untrained, monkeypatch):
    """A model that always gives the same day is right about that day alone."""
    monkeypatch.setattr(DatesTask, "NUM_VALIDATION", 7)
    monkeypatch.setattr(
        "groundup.training.tasks.translate_texts",
        lambda model, texts, *_: ["1999-12-31"] * len(texts),
    )
    last = datetime.date(1999, 12, 31)
    assert task.evaluate_on(untrained, [last])["exact_match"] == 1
    measured = task.evaluate_on(untrained, [DAY])
    assert measured["exact_match"] == 0
    assert measured["num_examples"] == 7
    assert measured["num_tokens"] == 7 * task.TARGET_LEN


def test_what_is_held_out_is_measured(task, untrained, monkeypatch):
    monkeypatch.setattr(DatesTask, "NUM_VALIDATION", 5)
    held_out = task.evaluate(untrained)
    assert held_out == task.evaluate_on(untrained, task.data.validation_days)
    assert held_out != task.evaluate_on(untrained, task.data.train_days)
