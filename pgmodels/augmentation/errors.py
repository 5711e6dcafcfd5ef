"""The errors of a derivation."""


class NoAugmentationError(ValueError):
    """No rule makes a factor of the likelihood conditionally Gaussian."""


class VerificationError(AssertionError):
    """A numerical check of a derivation failed."""
