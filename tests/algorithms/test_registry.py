from dataclasses import replace

import pytest

from nemo_specrl.algorithms import ALGORITHMS, check_algorithm
from nemo_specrl.config.algorithm import AlgorithmConfig


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_named_algorithm_is_valid_and_knows_its_name(name):
    check_algorithm(ALGORITHMS[name])
    assert ALGORITHMS[name].name == name


def test_dapo_is_what_its_paper_says():
    dapo = ALGORITHMS["dapo"]
    assert (dapo.clip_low, dapo.clip_high, dapo.loss_level, dapo.kl_coef) == (0.2, 0.28, "token", 0.0)
    assert dapo.dynamic_sampling


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "grop"}, "did you mean 'grpo'"),
        ({"loss_level": "word"}, "loss_level"),
        ({"group_size": 1}, "group_size"),
        ({"prompts_per_step": 0}, "prompts_per_step"),
        ({"updates_per_step": 9}, "whole group"),
        ({"clip_low": 1.0}, "clip_low"),
        ({"clip_high": 0.0}, "clip_high"),
        ({"kl_coef": -0.1}, "kl_coef"),
        ({"max_behaviour_ratio": 0.5}, "max_behaviour_ratio"),
    ],
)
def test_settings_that_cannot_work_name_their_field(change, message):
    with pytest.raises(ValueError, match=message):
        check_algorithm(replace(AlgorithmConfig(), **change))
