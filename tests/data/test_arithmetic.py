from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data.arithmetic import arithmetic_problems


@given(st.integers(0, 99), st.sampled_from(["+", "-", "+-", "+-*", "*"]), st.integers(2, 4), st.integers(2, 3))
def test_answers_are_right_and_problems_distinct(seed, operations, terms, digits):
    config = DataConfig(size=40, seed=seed, operations=operations, terms=(2, terms), digits=(1, digits))
    problems = list(arithmetic_problems(config))
    assert len({text for text, _, _ in problems}) == 40
    for text, answer, grade in problems:
        assert eval(text) == int(answer)
        operands = text.split()[::2]
        assert grade == f"{len(operands[0])}x{len(operands)}"
        assert len({len(operand) for operand in operands}) == 1


def test_the_same_seed_gives_the_same_problems_and_another_does_not():
    first = list(arithmetic_problems(DataConfig(seed=0)))
    assert first == list(arithmetic_problems(DataConfig(seed=0)))
    assert first != list(arithmetic_problems(DataConfig(seed=1)))


def test_grades_are_spread_evenly():
    problems = list(arithmetic_problems(DataConfig(size=120, terms=(2, 3))))
    for part in (problems[:60], problems[60:]):
        assert set(Counter(grade for _, _, grade in part).values()) == {15}


def test_a_grade_that_runs_out_leaves_its_turns_to_the_others():
    problems = list(arithmetic_problems(DataConfig(size=300, operations="+")))
    grades = Counter(grade for _, _, grade in problems)
    assert grades["1x2"] <= 100 < grades["2x2"]
    assert sum(grades.values()) == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 101, "digits": (1, 1), "operations": "+"}, "distinct problems"),
        ({"operations": "+/"}, "operations"),
        ({"operations": ""}, "operations"),
        ({"digits": (2, 1)}, "digits"),
        ({"digits": (0, 1)}, "digits"),
        ({"digits": (1,)}, r"data\.digits=\(1,\) must be a pair"),
        ({"terms": (2, 3, 4)}, "data.terms"),
        ({"terms": (1, 2)}, "terms"),
        ({"size": 0}, "size"),
        ({"seed": -1}, r"data\.seed=-1"),
    ],
)
def test_impossible_settings(options, message):
    with pytest.raises(ValueError, match=message):
        list(arithmetic_problems(DataConfig(**options)))
