"""Privacy loss distributions: certified upper and lower bounds on epsilon."""
