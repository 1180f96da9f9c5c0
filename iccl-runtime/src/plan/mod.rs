//! The pure function from descriptors, configuration and evidence to a plan.
