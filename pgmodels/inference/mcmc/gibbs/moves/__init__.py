"""The moves of the Gibbs engine, a file each."""
