from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.cluster.tasks import arm_label, plan
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.compose import hydra_quote
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.tracking import TrackingConfig


def tasks(**cluster):
    return plan(RunConfig(name="r", output_dir="runs/r", cluster=ClusterConfig(**cluster)), ["a=1"])


def test_one_run_keeps_its_folder_and_overrides():
    (task,) = tasks()
    assert task.overrides == ("a=1",)
    assert task.output_dir == "runs/r"


def test_arms_times_seeds_each_in_its_own_folder():
    found = tasks(arms=("experiment=vanilla", "reuse=exact drafter=history"), seeds=(0, 7))
    assert [task.output_dir for task in found] == [
        "runs/r/vanilla/seed_0",
        "runs/r/vanilla/seed_7",
        "runs/r/exact-history/seed_0",
        "runs/r/exact-history/seed_7",
    ]
    assert found[3].overrides == (
        *("a=1", "reuse=exact", "drafter=history", "name=exact-history", "seed=7"),
        "output_dir=runs/r/exact-history/seed_7",
        "tracking.sweep=runs/r",
    )


def test_an_arm_that_names_itself_is_not_renamed():
    (task,) = tasks(arms=("reuse=exact name=mine",))
    assert [word for word in task.overrides if word.startswith("name=")] == ["name=mine"]


@pytest.mark.parametrize(
    ("cluster", "tracking", "swept"),
    [
        ({"seeds": (0, 1)}, {}, [True, True]),
        ({"arms": ("reuse=exact", "reuse=off")}, {}, [True, True]),
        ({"seeds": (0,)}, {}, [False]),
        ({"seeds": (0, 1)}, {"sweep": "mine"}, [False, False]),
    ],
)
def test_the_runs_of_an_array_share_a_parent(cluster, tracking, swept):
    run = RunConfig(name="r", output_dir="r", cluster=ClusterConfig(**cluster), tracking=TrackingConfig(**tracking))
    assert ["tracking.sweep=r" in task.overrides for task in plan(run, [])] == swept


@pytest.mark.parametrize(
    ("arm", "label"), [("a=b", "b"), ("x=1e-6 y='[1, 2]'", "1e-6-_1_2"), ("p=a/b", "a_b"), ("novalue", "arm")]
)
def test_labels_are_folder_names(arm, label):
    assert arm_label(arm) == label


@given(
    st.text(st.characters(codec="ascii", exclude_categories=("Cc",)) | st.sampled_from(["\\", "'", '"']), min_size=1)
)
def test_hydra_reads_a_quoted_string_back(text):
    override = OverridesParser.create().parse_override(f"output_dir={hydra_quote(text)}")
    value = override.value()
    if "$" not in text:  # an interpolation is meant
        assert str(value) == text
