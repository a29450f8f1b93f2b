"""How the ranks are started: one module a launcher, each a pure function from settings to a command line."""
