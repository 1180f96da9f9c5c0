//! Hosts, NUMA nodes and devices of all ranks, as facts.
