"""Deployments: folders of keys, certificates and start scripts; checks; the fleet's proxy; runs."""
