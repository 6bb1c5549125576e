"""A whole run: one frozen dataclass per component. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.config.bench import BenchConfig
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.data import DataConfig
from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.config.evaluation import EvaluationConfig
from nemo_specrl.config.gate import GateConfig
from nemo_specrl.config.model import ModelConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.config.reuse import ReuseConfig
from nemo_specrl.config.reward import RewardConfig
from nemo_specrl.config.schedule import ScheduleConfig
from nemo_specrl.config.tracking import TrackingConfig
from nemo_specrl.config.trainer import TrainerConfig


@dataclass(frozen=True)
class RunConfig:
    """What `nemo-specrl train` runs."""

    name: str = "run"
    """The run's name in MLflow and in reports; its arm, when runs are compared."""
    output_dir: str = "runs/${name}"
    """Checkpoints, logs and reports of this run."""
    seed: int = 0
    """Seeds every random number of the run."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The pretrained model."""
    data: DataConfig = field(default_factory=DataConfig)
    """Prompts."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Scoring."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The objective."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """The law that rollouts are drawn from."""
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    """Reuse before the engine."""
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    """Drafting in the engine."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How much drafting, when."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """Megatron."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """vLLM."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """JSONL and MLflow."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Slurm."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """The loop."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Lossless gate."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation after training."""
    bench: BenchConfig = field(default_factory=BenchConfig)
    """Comparison of arms."""
