"""Reports of runs: the summary (report.json), its text (report.md), comparisons and plots."""
