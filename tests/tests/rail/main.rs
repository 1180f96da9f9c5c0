//! Links over NICs that reach memory of cards, or do not, with a transport that has a NIC in name only. The same
//! checks run over the real one by the program `iccl-test-rail`.

mod plan;
mod regions;

use std::sync::atomic::Ordering;

use iccl_tests::rail::checks;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

#[test]
fn b044_every_collective_over_staged() {
    checks::every_collective_over_staged();
    assert_eq!(iccl_tests_fabric::LEFT.load(Ordering::SeqCst), 0);
}

#[test]
fn b044_every_collective_over_direct_with_no_staged_byte() {
    checks::every_collective_over_direct_with_no_staged_byte();
    assert_eq!(iccl_tests_fabric::LEFT.load(Ordering::SeqCst), 0);
}

#[test]
fn b082_tiers_side_by_side_in_one_communicator() {
    checks::tiers_side_by_side_in_one_communicator();
    assert_eq!(iccl_tests_fabric::LEFT.load(Ordering::SeqCst), 0);
}

#[test]
fn b082_one_card_that_cannot_be_registered_degrades_its_own_links() {
    checks::one_card_that_cannot_be_registered_degrades_its_own_links();
    assert_eq!(iccl_tests_fabric::LEFT.load(Ordering::SeqCst), 0);
}

#[test]
fn b044_memory_that_comes_again_at_its_address_is_registered_anew() {
    checks::memory_that_comes_again_at_its_address_is_registered_anew();
    assert_eq!(iccl_tests_fabric::LEFT.load(Ordering::SeqCst), 0);
}
