//! Discovers, checks, loads, negotiates, probes and self-tests plugins.
