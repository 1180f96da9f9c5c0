//! The transport as its runtime sees it: through the traits, in one process and between several.

mod common;
mod messages;
