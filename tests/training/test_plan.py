"""Steps are a pure function of the configuration."""

from collections import Counter

from nemo_specrl.config.compose import compose
from nemo_specrl.training.plan import plan_steps


def test_every_prompt_once_per_epoch_and_numbered_through() -> None:
    run = compose(["algorithm.prompts_per_step=4", "trainer.epochs=3", "seed=1"])
    plans = plan_steps(run, 10)
    assert [p.step for p in plans] == list(range(1, 10))
    assert [len(p.prompts) for p in plans] == [4, 4, 2] * 3
    for epoch in (1, 2, 3):
        counts = Counter(i for p in plans if p.epoch == epoch for i in p.prompts)
        assert counts == Counter(range(10))


def test_orders_differ_between_epochs_and_seeds_and_repeat() -> None:
    def order(seed: int) -> list[tuple[int, ...]]:
        run = compose(["algorithm.prompts_per_step=64", "trainer.epochs=2", f"seed={seed}"])
        return [p.prompts for p in plan_steps(run, 50)]

    assert order(1) == order(1)
    assert order(1)[0] != order(1)[1]
    assert order(1) != order(2)


def test_max_steps_cuts_and_no_shuffle_keeps_the_order() -> None:
    run = compose(["algorithm.prompts_per_step=4", "trainer.max_steps=2", "data.shuffle=false"])
    assert [p.prompts for p in plan_steps(run, 10)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
