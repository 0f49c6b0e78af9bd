"""report.html: one file about any run folders, that needs no network.

It has the pictures of :mod:`fedpriv.report.pictures`, a chart of scores by round, a table that can be sorted,
and each run's privacy statement, command and configuration. Everything that comes from files is escaped, and
the page's content policy lets only its own script run.
"""
