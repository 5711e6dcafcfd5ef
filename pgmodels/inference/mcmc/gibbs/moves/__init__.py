"""The moves of the Gibbs engine, one module each."""
