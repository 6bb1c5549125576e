from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.rewards.answers import (
    equation_end,
    extract_answer,
    is_marked,
    last_number,
    only_number,
    plain_number,
    same_number,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"first \boxed{3}, then \boxed{5}.", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\text{13}}", "13"),
        ("The answer is 13.", "13"),
        ("The answer is 3.5. Next problem", "3.5"),
        ("Answer: $13$", "13"),  # EasyR1#382
        ("**Answer:** 12", "12"),
        ("The answer is **7**. I hope that helps", "7"),
        ("thinking...\n#### 1,234", "1,234"),
        ("the answer is 4. No, the answer is 5", "5"),
        ("the answer is $5.00", "5.00"),
        (r"The answer is $11,\! 100$. Done", r"11,\! 100"),
        (r"Final Answer: \boxed{x^2}", "x^2"),
        ("$7$", "7"),
        ("", ""),
    ],
)
def test_the_answers_own_text(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize("text", [r"\boxed{5", r"the answer is 5 and \boxed{\frac{1}{2}", r"\boxed{1} then \boxed{2"])
def test_a_box_that_is_never_closed_is_no_answer(text):
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("it is 7", False),
        ("", False),
        ("The answer is", False),
        ("#### 7", True),
        (r"\boxed{7", True),
        ("Answer: 7", True),
    ],
)
def test_whether_an_answer_is_marked(text, marked):
    assert is_marked(text) is marked


_PIECES = st.sampled_from(
    [r"\boxed{", "}", "{", "answer is ", "Answer: ", "#### ", "7", "$", r"\$", ".", " ", "**", "x", "\n", r"\text{"]
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_extraction_is_idempotent(text):
    """slime#1246: stripped twice, every answer was lost."""
    once = extract_answer(text)
    assert once is None or extract_answer(once) == once


@pytest.mark.parametrize(
    ("text", "value", "percent"),
    [
        ("7", 7, False),
        ("-1,234.50", Fraction(-2469, 2), False),
        ("3/4", Fraction(3, 4), False),
        (r"-\frac{3}{4}", Fraction(-3, 4), False),
        (r"\dfrac{3}{4}", Fraction(3, 4), False),
        ("− 3", -3, False),
        (".5", Fraction(1, 2), False),
        (r"50\%", 50, True),
        ("50%", 50, True),
        ("$7$", 7, False),
        ("4.5e3", 4500, False),
        ("-2E-3", Fraction(-1, 500), False),
        (r"11,\! 111,\!100", 11111100, False),
    ],
)
def test_plain_numbers(text, value, percent):
    assert plain_number(text) == (value, percent)


@pytest.mark.parametrize(
    "text", ["", "-", ".", "1,2", "1,23", "2^3", "3/0", "x", "7x", "1 2", r"\sqrt{2}", "1e9999", "e5"]
)
def test_what_is_no_plain_number(text):
    assert plain_number(text) is None


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_read_back(value):
    assert plain_number(f"{value.numerator}/{value.denominator}") == (value, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 + 4 = 7.", 7),
        ("3 - 4 = -1", -1),
        ("it equals - 7", -7),
        ("12 - 7", 7),
        ("That makes 5 apples!", 5),
        ("*7*", 7),
        ("so 2/3 of it", Fraction(2, 3)),
    ],
)
def test_the_number_that_prose_ends_on(text, value):
    assert last_number(text) == (value, False)


@pytest.mark.parametrize("text", ["no digits", r"$4\sqrt{2}$", "2^3", "x7", "3 / 4", "the 13th"])
def test_prose_that_ends_on_more_than_a_number(text):
    assert last_number(text) is None


def test_the_only_number_of_an_answer():
    assert only_number("7 apples") == (7, False)
    assert only_number("x = 7") == (7, False)
    assert only_number("5 or 6") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 + 4 = 7", 7),
        ("1,000 + 1 = 1,001", 1001),
        ("x = 7 apples", 7),
        ("x = 3 or x = 7", None),
        ("x = 3, y = 7", None),
        ("3 != 7", None),
        ("7", None),
    ],
)
def test_the_number_that_an_equation_ends_on(text, value):
    assert equation_end(text) == (None if value is None else (value, False))


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("50%", "50%", True),
        ("50%", "0.5", True),
        ("50%", "50", True),  # the unit left out
        ("0.5", "50%", True),
        ("50", "50%", True),
        ("50%", "5", False),
        ("50", "0.5", False),
        ("50%", "0.5%", False),
        ("1/3", "0.333333", True),
        ("1/3", "0.333", False),
        ("1000000", "1000001", False),
        ("0.00000001", "0.00000002", False),
        ("1,000", "1000.0", True),
    ],
)
def test_same_number(gold, answer, same):
    assert same_number(plain_number(gold), plain_number(answer)) is same
