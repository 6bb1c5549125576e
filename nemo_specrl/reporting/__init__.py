"""Reading runs back, comparing them, and showing the result: terminal, JSON, one self-contained page."""

from nemo_specrl.reporting.command import compare_folders
from nemo_specrl.reporting.compare import Comparison, compare
from nemo_specrl.reporting.history import RunHistory
from nemo_specrl.reporting.load import find_runs, load_run
from nemo_specrl.reporting.run_page import run_report

__all__ = ["Comparison", "RunHistory", "compare", "compare_folders", "find_runs", "load_run", "run_report"]
