//! Settings: typed TOML, environment and API values, each with its provenance.
