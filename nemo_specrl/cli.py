"""The command table. Heavy imports live inside the commands: `nemo-specrl --help` answers in well under a second."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_specrl.quiet import quiet_libraries

USAGE = """\
nemo-specrl: RL post-training with speculative rollouts.

usage: nemo-specrl VERB [group=option ...] [key=value ...]

{verbs}

After train, bench, verify, eval, submit, preflight and prepare comes Hydra: group=option selects a file of conf/,
key=value sets a field. Groups: model data algorithm reuse drafter schedule policy engine tracking cluster trainer
experiment.
Every key, with its type and default: docs/configuration.md. Add --dump-config to print the resolved run and stop.

  nemo-specrl train experiment=spec_rl trainer.epochs=3      nemo-specrl bench experiment=vanilla,spec_rl
"""


@dataclass(frozen=True)
class Verb:
    """One row of the command table."""

    help: str
    run: Callable[[list[str]], int]
    own_help: bool = False
    """It parses its arguments itself and has a --help of its own; the others take what `train` takes."""


def train(args: list[str]) -> int:
    from nemo_specrl.commands.train import train_command

    return train_command(args)


def bench(args: list[str]) -> int:
    from nemo_specrl.commands.bench import bench_command

    return bench_command(args)


def verify(args: list[str]) -> int:
    from nemo_specrl.commands.verify import verify_command

    return verify_command(args)


def evaluate(args: list[str]) -> int:
    from nemo_specrl.commands.evaluate import eval_command

    return eval_command(args)


def export(args: list[str]) -> int:
    from nemo_specrl.commands.export import export_command

    return export_command(args)


def prepare(args: list[str]) -> int:
    from nemo_specrl.commands.prepare import prepare_command

    return prepare_command(args)


def doctor(args: list[str]) -> int:
    from nemo_specrl.cluster.doctor import doctor_command

    return doctor_command(args)


def submit(args: list[str]) -> int:
    from nemo_specrl.cluster.submit import submit_command

    return submit_command(args)


def status(args: list[str]) -> int:
    from nemo_specrl.cluster.status import status_command

    return status_command(args)


def preflight(args: list[str]) -> int:
    from nemo_specrl.commands.preflight import preflight_command

    return preflight_command(args)


def compare(args: list[str]) -> int:
    from nemo_specrl.reporting.command import compare_command

    return compare_command(args)


VERBS: dict[str, Verb] = {
    "train": Verb("one run, here (or one rank of it under torchrun)", train),
    "bench": Verb("several arms on the same prompts, weights and seeds; one report", bench),
    "verify": Verb("the lossless gate, alone: does the engine sample from the policy?", verify),
    "eval": Verb("the newest checkpoint of output_dir on the configured data", evaluate),
    "submit": Verb("the same run as a Slurm job; --dry-run prints the script", submit, own_help=True),
    "status": Verb("what became of a submitted run", status, own_help=True),
    "preflight": Verb("one canary per node of an allocation", preflight),
    "compare": Verb("RUN RUN ... [--html F] [--json F] [--fail-if EXPR]", compare, own_help=True),
    "export": Verb(
        "RUN OUT [--step N]: a run's checkpoint as a Hugging Face folder, its draft head beside it",
        export,
        own_help=True,
    ),
    "prepare": Verb("fetch or convert the model, check the data", prepare),
    "doctor": Verb("what this machine has, what will be used, what is missing", doctor, own_help=True),
}


def usage() -> str:
    return USAGE.format(verbs="\n".join(f"  {name:<10} {verb.help}" for name, verb in VERBS.items()))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script. Exits 2 on a user's error (1 on a full disk), with the remedy and without a
    traceback."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    """The command's exit code."""
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] == "--version":
        from nemo_specrl import __version__

        print(f"nemo-specrl {__version__}")
        return 0
    if args[0] not in VERBS:
        from nemo_specrl.config.compose import did_you_mean

        print(f"nemo-specrl: no verb '{args[0]}'. {did_you_mean(args[0], list(VERBS))}", file=sys.stderr)
        return 2
    if args[1:] in (["-h"], ["--help"]) and not VERBS[args[0]].own_help:
        print(f"nemo-specrl {args[0]}: {VERBS[args[0]].help}\n\n{usage()}")
        return 0
    quiet_libraries()
    try:
        return VERBS[args[0]].run(args[1:])
    except SystemExit as stop:  # argparse has shown a verb's own help
        return int(stop.code or 0)
    except (ValueError, ConnectionError) as error:
        if not raised_by_us(error):
            raise
        print(f"nemo-specrl {args[0]}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" at {error.filename}: free some space and start the same command again" if error.filename else ""
        print(f"nemo-specrl {args[0]}: {error.strerror}{where}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if str(error) != "Could not determine home directory.":  # pathlib's words for the ~ of an unknown user
            raise
        print(f"nemo-specrl {args[0]}: a path begins with ~ and the name of no user of this machine", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("nemo_specrl", ""):
            raise
        print(
            f"nemo-specrl {args[0]} needs '{error.name}', which is not installed: install the extra nemo-specrl[cpu] "
            f"or nemo-specrl[gpu] (from a checkout: make .venv), or use the container ({Path('docs/containers.md')})",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("nemo-specrl: interrupted", file=sys.stderr)
        return 130


def raised_by_us(error: BaseException) -> bool:
    """Whether code of ours said it, with a remedy. A library's ValueError within a step needs its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).split(".")[0] == __package__


if __name__ == "__main__":
    main()
