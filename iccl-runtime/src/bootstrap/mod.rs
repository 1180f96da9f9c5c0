//! Rendezvous, authentication and exchange of descriptors.
