"""Dates as people write them in many languages, paired with their ISO form."""

import datetime
import itertools
from collections.abc import Sequence

import babel
import torch
from babel.dates import format_date, get_date_format

from groundup.data.batches import Pair
from groundup.data.tokenizers import BOS, EOS, PAD, CharacterTokenizer


class Dates:
    """Dates as people write them, each with its ISO form: `3. Mai 2031` and `2031-05-03`.

    Days of two centuries in 24 locales, in every standard form that shows the full year: with
    and without the day of the week, with month names, abbreviations or digits only. No two days
    are ever written the same way, so each source has one correct target. Finding it takes
    context: `listopada` is October in Croatian and November in Polish.

    A tenth of the days is held out in all forms: a model is evaluated on days that it has not
    seen in any language.

    Source:
        Unicode Common Locale Data Repository, https://cldr.unicode.org, as packaged by Babel,
        https://babel.pocoo.org

    """

    LOCALES = tuple(
        "cs da de el en_GB en_US es fi fr hr hu id it ja ko nl pl pt ro ru sv tr vi zh".split()
    )
    """Locales whose forms are used, by their names in CLDR."""
    STYLES = ("full", "long", "medium", "short")
    """How much of a date is spelled out, from most to least, by the names in CLDR."""
    FIRST_DAY = datetime.date(1900, 1, 1)
    """The earliest day."""
    LAST_DAY = datetime.date(2099, 12, 31)
    """The latest day."""

    def __init__(self) -> None:
        self.name = f"dates in {len(self.LOCALES)} locales of Babel {babel.__version__}"
        num_days = (self.LAST_DAY - self.FIRST_DAY).days + 1
        # Held out with a fixed seed, so that the split is the same in every run.
        shuffled = torch.randperm(num_days, generator=torch.Generator().manual_seed(0)).tolist()
        days = [self.FIRST_DAY + datetime.timedelta(days=number) for number in shuffled]
        self.train_days = days[num_days // 10 :]
        self.validation_days = days[: num_days // 10]
        # "yy" omits the century. If two styles of a locale are the same, the longer one counts.
        self.style_of: dict[tuple[str, str], str] = {}
        for locale, style in itertools.product(self.LOCALES, self.STYLES):
            pattern = get_date_format(style, locale).pattern
            if "yy" not in pattern:
                self.style_of.setdefault((locale, pattern), style)
        self.forms = list(self.style_of)

    def write(self, day: datetime.date, form: tuple[str, str]) -> Pair:
        """Write a day in one of the `forms`, each a locale and a CLDR pattern."""
        locale, pattern = form
        return Pair(format_date(day, pattern, locale), day.isoformat())

    def draw(
        self, number: int, generator: torch.Generator, days: Sequence[datetime.date]
    ) -> list[Pair]:
        """Draw random days, each written in a random form.

        Args:
            number: Number of pairs.
            generator: Draws the days and the forms.
            days: Days to draw from, `train_days` or `validation_days`.

        """
        return [self.write(day, form) for day, form in self.choose(number, generator, days)]

    def choose(
        self, number: int, generator: torch.Generator, days: Sequence[datetime.date]
    ) -> list[tuple[datetime.date, tuple[str, str]]]:
        """Draw random days, each with a random form, as `draw` does but without writing them."""
        which_days = torch.randint(len(days), (number,), generator=generator).tolist()
        which_forms = torch.randint(len(self.forms), (number,), generator=generator).tolist()
        return [
            (days[day], self.forms[form]) for day, form in zip(which_days, which_forms, strict=True)
        ]

    def tokenizers(self) -> tuple[CharacterTokenizer, CharacterTokenizer]:
        """Make the tokenizers of sources and targets."""
        # Seven days of each month cover all month names, weekday names and digits.
        days = [datetime.date(1980, month, day) for month in range(1, 13) for day in range(1, 8)]
        sources = (self.write(day, form).source for day in days for form in self.forms)
        return (
            CharacterTokenizer.fit(sources, [PAD]),
            CharacterTokenizer("-0123456789", [PAD, BOS, EOS]),
        )
