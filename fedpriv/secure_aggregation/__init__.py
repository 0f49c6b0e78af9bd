"""Secure aggregation: the server learns the sum of the parties' messages, and no message.

After Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", in the
form that withstands a malicious server. ``party`` is a party's side, ``server`` is the server's. They are
state machines without input and output: whoever runs them carries the messages.
docs/explanation/secure-aggregation.md describes the exchanges and what is claimed.
"""
