"""What a run says about itself: the summary, its privacy statement, and its plots."""
