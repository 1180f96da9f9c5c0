//! Links over NICs that reach memory of cards, or do not, with a transport that has a NIC in name only.

mod cards;
mod fabric;
mod jobs;
mod regions;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;
