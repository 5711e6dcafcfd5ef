"""Priors with inducing inputs."""
