import pytest

from classroom.limits import Limits


@pytest.mark.parametrize("name", [field for field in Limits.__slots__])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        Limits(**{name: 0})


def test_output_has_a_limit_of_its_own():
    with pytest.raises(ValueError, match="output_bytes must be at most"):
        Limits(output_bytes=2**30)
