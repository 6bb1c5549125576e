"""Cross-field validation: impossible combinations fail before anything is loaded, and say what to change."""

import pytest

from nemo_specrl.config.compose import compose
from nemo_specrl.config.rules import RULES
from nemo_specrl.config.validate import log_lenience, lossy_stamp


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sampling.temperature=0"], "temperature=0.0: must be positive"),
        (["sampling.temperature=nan"], "must be a finite number"),
        (["sampling.top_p=1.5"], r"must lie in \(0, 1\]"),
        (["sampling.max_new_tokens=512", "model.max_length=512"], "no room for a prompt"),
        (["reuse=exact", "reuse.log_lenience=0.3"], "for reuse.rule=lenient only"),
        (["reuse=lenient", "reuse.log_lenience=-0.3"], "must be at least 0"),
        (["reuse=exact", "reuse.correction=token"], "needs none"),
        (["reuse=lenient", "reuse.correction=behaviour"], "is called token now.*sequence leaves none"),
        (["reuse=lenient", "reuse.correction=sequence", "sampling.top_p=0.9"], "no weight mends.*reuse=exact"),
        (["reuse=lenient", "reuse.correction=token", "sampling.top_k=50", "drafter=off"], "no weight mends"),
        (["reuse=exact", "reuse.verifier=engine"], "use reuse.verifier=policy"),
        (["reuse=lenient", "reuse.verifier=engine", "sampling.temperature=0.7"], "temperature 1"),
        (["reuse=lenient", "reuse.verifier=engine", "reuse.correction=prefix"], "top candidates"),
        (["reuse.delay=2", "reuse.max_age=1"], "reuse.delay=2"),
        (["algorithm.updates_per_step=9", "algorithm.prompts_per_step=8"], "whole groups"),
        (["algorithm.clip_low=1.5"], "clip_low"),
        (["algorithm.baseline=batch", "algorithm.updates_per_step=2"], "sees its own part"),
        (["algorithm.ratio=sequence"], "loss_level=sequence"),
        (["algorithm=cispo", "algorithm.dual_clip=3"], "surrogate=ppo"),
        (["algorithm.dual_clip=1"], "must be above 1"),
        (["algorithm.clip_high=0"], "clip_high"),
        (["algorithm.group_size=1"], "group_size"),
        (["algorithm.kl_coef=-1"], "kl_coef"),
        (["algorithm.max_behaviour_ratio=0.5"], "max_behaviour_ratio"),
        (["trainer.max_steps=0"], "at least 1"),
        (["trainer.keep_checkpoints=1"], "at least 2"),
        (["data.prompt_template=hello"], "must contain"),
        (["reuse.rule=lenientt"], "must be one of"),
        (["engine.gpu_memory_utilization=0"], "gpu_memory_utilization"),
        (["reward.timeout_s=0"], "timeout_s=0.0: must be positive"),
        (["reward.max_error_fraction=2"], r"must lie in \[0, 1\]"),
        (["drafter.min_probability=-0.1"], r"must lie in \[0, 1\]"),
        (["policy.betas=[0.9,1]"], r"each must lie in \[0, 1\)"),
        (["policy.lr=nan"], "policy.lr=nan: must be a finite number"),
        (["drafter.head.lr=inf"], "drafter.head.lr=inf: must be a finite number"),
        (["data.limit=0"], "at least 1"),
        (["name=''"], "name is empty"),
        (["output_dir=' '"], "output_dir is empty"),
        (["trainer.val_prompts=-1"], "at least 0"),
    ],
)
def test_impossible_combinations(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compose(overrides)


def test_dapo_is_what_its_paper_says() -> None:
    dapo = compose(["algorithm=dapo"]).algorithm
    assert (dapo.clip_low, dapo.clip_high, dapo.loss_level, dapo.kl_coef) == (0.2, 0.28, "token", 0.0)
    assert dapo.dynamic_sampling


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(ValueError, match="top_p") as caught:
        compose(["sampling.temperature=0", "sampling.top_p=0"])
    assert "temperature" in str(caught.value)


def test_columns_are_needed_for_files_only() -> None:
    with pytest.raises(ValueError, match="data.columns lacks"):
        compose(["data=jsonl", "data.source=x.jsonl", "~data.columns.answer"])


@pytest.mark.parametrize(("algorithm", "expected"), [("grpo", 0.5), ("dapo", 0.15)])
def test_default_lenience_is_the_papers(algorithm: str, expected: float) -> None:
    assert log_lenience(compose([f"algorithm={algorithm}", "reuse=lenient"])) == expected
    assert log_lenience(compose([f"algorithm={algorithm}", "reuse=lenient", "reuse.log_lenience=0.1"])) == 0.1


def test_only_biased_settings_are_stamped() -> None:
    stamps = {rule: lossy_stamp(compose([f"reuse={rule}"])) for rule in RULES}
    assert {rule for rule, stamp in stamps.items() if stamp} == {"lenient", "full", "random"}
