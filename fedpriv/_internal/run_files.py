"""What the files of a run's folder are called; :mod:`fedpriv.runs.run_dir` says what is in them."""

from __future__ import annotations

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
LEDGER = "ledger.jsonl"
MODEL = "model.safetensors"
STATE = "state.safetensors"
REPORT = "report.json"
REPORT_TEXT = "report.md"
CURVES = "curves.png"
REPORTS = (REPORT, REPORT_TEXT, CURVES)  # in the order in which a run's end writes them
