"""Priors by inducing inputs."""
