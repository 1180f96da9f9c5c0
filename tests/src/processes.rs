//! Ranks as processes.
