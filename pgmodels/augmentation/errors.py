"""The errors of a derivation."""


class NoAugmentationError(ValueError):
    """No rule makes a factor of the likelihood conditionally Gaussian; the message names engines that need none."""

    def __init__(self, message: str):
        super().__init__(f"{message}\npgm.gaussian_vi, pgm.nuts and pgm.to_numpyro accept any formula.")


class VerificationError(AssertionError):
    """A numerical check of a derivation failed."""
