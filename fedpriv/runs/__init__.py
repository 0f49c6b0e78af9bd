"""Running a plan in a folder: budget, checkpoints, files."""
