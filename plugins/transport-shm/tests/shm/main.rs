//! The transport as its runtime sees it: through the traits, in one process and between several.

mod bad_peers;
mod child;
mod common;
mod lifetime;
mod messages;
mod waiting;
