"""Behaves like the trainer towards the batch shell: one checkpoint per step, stops at a signal, hands over.

Called as `stand_in.py -m nemo_specrl.cli train output_dir=... steps=N step_s=S [crash_at=K]`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from nemo_specrl.cluster.walltime import job_deadline
from nemo_specrl.training.signals import StopSignal, hand_over


def main() -> int:
    options = dict(word.partition("=")[::2] for word in sys.argv[1:] if "=" in word)
    folder = Path(options["output_dir"].strip("'"))
    state = folder / "checkpoint"
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))
    done = int(state.read_text()) if state.exists() else 0
    with StopSignal(deadline=job_deadline(os.environ), reserve_s=float(options.get("reserve_s", 5))) as stop:
        while done < int(options["steps"]):
            if reason := stop.stop_requested():
                print("stopping:", reason, flush=True)
                return hand_over(reason)
            if done == int(options.get("crash_at", -1)):
                raise RuntimeError("crashed on purpose")
            time.sleep(float(options["step_s"]))
            done += 1
            with open(folder / "steps.log", "a") as log:
                log.write(f"{done} {os.environ['NEMO_SPECRL_ATTEMPT']}\n")
            state.with_suffix(".tmp").write_text(str(done))
            os.replace(state.with_suffix(".tmp"), state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
