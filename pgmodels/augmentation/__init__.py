"""From the formula of a likelihood to an augmentation that makes it conditionally Gaussian."""
