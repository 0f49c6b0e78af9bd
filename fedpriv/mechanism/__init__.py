"""The query, the sampling of its cohort, and the noisy release of its sum."""
