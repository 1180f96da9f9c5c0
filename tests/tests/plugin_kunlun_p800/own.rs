//! What only P800 has: pointers that are looked up, memory at an address of the host's.

use std::ffi::c_void;

use iccl_plugin_api::tables::region_form;
use iccl_plugin_api::{MemoryKind, Status};

use crate::simulator::machine;

const REGION_BYTES: u64 = 2 << 20;

#[test]
fn a_pointer_of_another_card_is_refused() {
    let machine = machine();
    let (card, other) = (machine.card(0), machine.card(1));
    let elsewhere = other.allocate(64, MemoryKind::Device).expect("memory");
    let error = card.memory_kind(elsewhere).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("is memory of card 1, not of card 0"), "{error}");
    // SAFETY: nothing uses it.
    unsafe { other.free(elsewhere) }.expect("freed");
}

#[test]
fn memory_for_a_nic_is_an_alias_that_the_host_reads_and_writes() {
    let machine = machine();
    let facts = machine.set.devices()[0].facts();
    assert_eq!(facts.capabilities.region_forms, region_form::HOST_ALIAS);
    assert_eq!(facts.capabilities.region_alignment, 2 << 20);
    let card = machine.card(0);
    let memory = card.allocate(2 * REGION_BYTES, MemoryKind::Device).expect("memory");
    let half = memory.wrapping_byte_add(REGION_BYTES as usize);
    let region = card.export_region(half, REGION_BYTES).expect("a region");
    assert_eq!((region.form, region.length), (region_form::HOST_ALIAS, REGION_BYTES));
    assert_ne!(region.address, half.addr() as u64, "the card's own address is of no use to a NIC");
    // What a NIC writes there is the card's.
    let alias = std::ptr::with_exposed_provenance_mut::<u8>(region.address as usize);
    // SAFETY: the region is this long, until it is released.
    unsafe { alias.write_bytes(0x3c, 8) };
    card.flush(half, 8).expect("flushed");
    let mut back = [0_u8; 8];
    let (to, from) = (back.as_mut_ptr().cast::<c_void>(), half.cast_const());
    // SAFETY: both sides have 8 bytes; stream 0 copies before it returns.
    unsafe { card.copy(0, (to, MemoryKind::Host), (from, MemoryKind::Device), 8) }.expect("copied");
    assert_eq!(back, [0x3c; 8]);
    // A NIC has it: it cannot be freed.
    // SAFETY: it is refused.
    let error = unsafe { card.free(memory) }.unwrap_err();
    assert!(error.message.contains("is still given to a NIC"), "{error}");
    card.release_region(&region).expect("released");
    assert_eq!(card.release_region(&region).unwrap_err().status, Status::InvalidArgument);
    // Regions begin and end at 2 MiB, and are the card's.
    for (pointer, bytes) in [
        (memory.wrapping_byte_add(64), REGION_BYTES),
        (memory, REGION_BYTES / 2),
        (memory, 4 * REGION_BYTES),
    ] {
        let error = card.export_region(pointer, bytes).unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
    }
    // SAFETY: nothing uses it any more.
    unsafe { card.free(memory) }.expect("freed");
}

#[test]
fn a_mapping_that_bkcl_refuses_is_an_error_with_its_number() {
    let machine = machine();
    let card = machine.card(0);
    let memory = card.allocate(REGION_BYTES, MemoryKind::Device).expect("memory");
    machine.simulate("host_alias", "0");
    let error = card.export_region(memory, REGION_BYTES).unwrap_err();
    machine.simulate("host_alias", "1");
    assert_eq!((error.status, error.vendor_code), (Status::DeviceError, 2), "{error}");
    assert!(error.message.contains("xccl_mmap answered 2"), "{error}");
    // SAFETY: nothing uses it.
    unsafe { card.free(memory) }.expect("freed");
}
