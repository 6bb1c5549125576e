import numpy as np
import pytest

from nemo_specrl.rewards.math import MathReward, is_right
from nemo_specrl.types import Prompt


def prompt(answer):
    return Prompt(np.array([1], dtype=np.int32), answer, "a question")


# DEMANDS part E, with the behaviour that users want; math-verify 0.9.0 alone fails all of these
DEMANDED = [
    pytest.param("$4$", r"$4\sqrt(2)$", False, id="Math-Verify#41"),
    pytest.param(r"$\frac{1}{2^{99}}$", r"$\frac{1}{2^{98}}$", False, id="Math-Verify#14 small numbers"),
    pytest.param(r"$1, 2, \ldots, n$", r"$1, 3, 5, \ldots, 2n-1$", False, id="Math-Verify#14 list"),
    pytest.param(r"$1:2:3:\ldots$", r"$1:4:9:\ldots$", False, id="Math-Verify#14 ratio"),
    pytest.param(r"$\sqrt{1/n}$", r"$\frac{1}{\sqrt{n}}$", True, id="Math-Verify#64"),
    pytest.param(r"\boxed{\dfrac{\pi}{2}}", "pi/2", True, id="Math-Verify#69 pi/2"),
    pytest.param(r"\boxed{-2\pi}", "-2*pi", True, id="Math-Verify#69 -2*pi"),
    pytest.param(r"\boxed{14 - i}", "14.0 + -1.0i", True, id="Math-Verify#69 complex"),
]
# the same kinds of fault on other inputs, both ways round
KINDS = [
    (r"$4\sqrt{2}$", r"$4\sqrt(2)$", True),
    ("2", r"$4\sqrt(2)$", False),
    (r"$2^{-99}$", r"$\frac{1}{2^{99}}$", True),
    ("10^{-9}", r"\boxed{2\cdot 10^{-9}}", False),
    (r"$1:2:3:\ldots$", r"$1 : 2 : 3 : \ldots$", True),
    (r"$1, 2, \dots, n$", r"$1, 2, \dots, m$", False),
    (r"$\sqrt{x^2}$", "$x$", False),
    (r"$|x|$", "$x$", False),
    (r"$\sqrt{a/b}$", r"$\frac{\sqrt{a}}{\sqrt{b}}$", False),  # not for negative a and b
    (r"\boxed{14 - i}", "14.0 + 1.0i", False),
    (r"e^{i\pi}", r"\boxed{-1}", True),
    (r"2\sqrt{3}", "The answer is 2*sqrt(3).", True),
]
# several answers at once are no answer, wherever the right one stands among them
HEDGED = [
    ("13", "#### 12 or 13", False),
    ("13", "Answer: 12 or 13", False),
    ("13", "Answer: 12, 13", False),
    ("13", "The answer is 12 or 13.", False),
    ("13", r"\boxed{12, 13}", False),
    ("13", r"\boxed{12 \text{ or } 13}", False),
    ("7", "Answer: x = 3 or x = 7", False),
    ("7", "Answer: 3 + 4 = 7", True),
    ("3", "Answer: 3 + 4 = 7", False),
    ("13", "Answer: 13", True),
    ("13", "Answer: 13 apples", True),
]
ORDINARY = [
    ("7", "3 + 4 = 7.", True),
    ("7", "$3 + 4 = 7$", True),
    ("7", "I do not know", False),
    ("7", "", False),
    ("5", r"\boxed{5", False),
    ("13", r"\boxed{\text{13}}", True),
    ("12", "The answer is: x=12", True),
    (r"\frac{1}{12}", "1/12", True),
    (r"\frac{3}{4}", "0.75", True),
    ("(1,2)", r"\boxed{(1, 2)}", True),
    ("(1,2)", r"\boxed{(2, 1)}", False),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
    ("y=2x+1", r"\boxed{y = 1+2x}", True),
    ("x^2+2x+1", "so $f = (x+1)^2$", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\3\end{pmatrix}}", False),
    (r"\text{A}", "The answer is A.", True),
    (r"\text{A}", "The answer is B.", False),
    (r"\text{red}", r"\boxed{red}", True),
    (r"9 \text{ cm}", r"\boxed{9}", True),
    ("18", r"The total is $6 \times 3 = 18$ dollars.", True),
    (r"50\%", r"\boxed{50\%}", True),
    (r"11,\! 111,\! 100", "The answer is 11111100.", True),
    ("4.5e33", r"\boxed{4.5 \times 10^{33}}", True),
    (r"4.5 \times 10^{33}", r"\boxed{4.5e33}", True),
    (r"4.5 \times 10^{33}", r"\boxed{4.5e32}", False),
    ("100000", "#### 1e5", True),
    (r"2e^{3}", r"\boxed{2e3}", False),
    (r"50\%", r"\boxed{\frac{1}{2}}", True),
]


@pytest.mark.parametrize(("gold", "response", "right"), DEMANDED + KINDS + HEDGED + ORDINARY)
def test_verdicts(gold, response, right):
    assert is_right(gold, response) is right


def test_math_verify_alone_fails_what_users_reported():
    """Why the corrections exist; when this fails, an upgrade of math-verify has made one of them needless."""
    from math_verify import parse, verify

    for case in DEMANDED:
        gold, response, right = case.values
        assert verify(parse(gold), parse(response)) is not right, (gold, response)


@pytest.mark.parametrize("answer", ["", "  ", "$$", r"\boxed{}", r"\boxed{5"])
def test_an_answer_that_nothing_could_equal_is_a_fault_of_the_data(answer):
    with pytest.raises(ValueError, match="Repair the row"):
        MathReward().check(prompt(answer))


def test_values_are_one_and_zero():
    reward = MathReward()
    assert [reward(text, prompt("4")).value for text in ("2 + 2 = 4", "5")] == [1.0, 0.0]
    assert reward("5", prompt("4")).valid


@pytest.mark.parametrize("wording", [r"\boxed{{{}}}", "The answer is {}.", "#### {}", "Answer: ${}$", "2 + 2 = {}"])
def test_every_wording_that_the_prompts_ask_for_is_read(wording):
    """EasyR1#382, Trinity-RFT#566: prompt and parser must agree."""
    assert is_right("4", wording.format(4))
    assert not is_right("4", wording.format(5))
