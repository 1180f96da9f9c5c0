//! Discovery: what becomes of good plugins, and of every kind of bad one. Each bad candidate gives a
//! reason of its own in one line, the good ones go on working beside it, and this process lives.
//!
//! * `files`: what is wrong with a file, seen before it is loaded.
//! * `code`: what is wrong with the code in it.
//! * `drift`: plugins built from other versions of the SDK's sources.
//! * `policy`: what the configuration asks for.

mod code;
mod drift;
mod files;
mod log_lines;
mod policy;
mod support;
