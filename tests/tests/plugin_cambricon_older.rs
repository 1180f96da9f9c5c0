//! The Cambricon plugin on libraries that lack what it can do without: copies by the oldest of three
//! functions, broadcasts in one buffer, all-to-all by messages, plain addresses for NICs.

#[path = "plugin_cambricon/simulator.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod simulator;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::tables::region_form;
use iccl_tests::maker::{
    Machine, Maker, allocate, blocks_are_moved_and_reduced, every_type_is_moved, free,
};
use iccl_tests::sim_sdk;

use simulator::{CAMBRICON, cards_of_ranks};

fn machine() -> Machine {
    Machine::new(&Maker {
        variant: Some(sim_sdk::cambricon_older),
        settings: &[("peer_memory", "true")],
        ..CAMBRICON
    })
}

#[test]
fn every_type_is_moved_by_what_is_there() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    every_type_is_moved(&machine);
}

#[test]
fn blocks_of_different_length_are_moved_and_reduced_by_what_is_there() {
    let machine = machine();
    let _cards = cards_of_ranks(&machine);
    blocks_are_moved_and_reduced(&machine);
}

#[test]
fn memory_is_given_out_by_its_address_if_the_operator_says_that_nics_take_it() {
    let machine = machine();
    let card = machine.card(0);
    assert_eq!(machine.set.devices()[0].facts().capabilities.region_forms, region_form::ADDRESS);
    let memory = allocate(&card, MemoryKind::Device);
    let region = card.export_region(memory, 64).expect("a region");
    assert_eq!((region.form, region.address), (region_form::ADDRESS, memory as u64));
    assert_eq!((region.descriptor, region.length), (-1, 64));
    card.release_region(&region).expect("released");
    free(&card, &[memory]);
}
