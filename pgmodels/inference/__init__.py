"""The inference engines: each a short program over an augmentation and a latent prior."""
