"""Everything that a build downloads, in one file, and a build from that file without a network."""
