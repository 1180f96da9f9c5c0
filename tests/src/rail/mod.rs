//! Links over NICs that take the memory of a card, or do not: simulated cards, and what holds on them whatever
//! the transport.

pub mod cards;
pub mod checks;
